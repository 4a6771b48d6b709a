"""Free slots between objects are filled, so that new objects lie in new memory."""

from tests.helpers.processes import run_python

FILL = """
    from subagent_server.warm import heap
    many = [[bytes(number % 400) for number in range(20_000)] for _ in range(2)]
    del many[0][::2], many[1][::3]
    free = lambda: sum(size * slots for size, slots in heap.free_slots())
    before = free()
    heap.fill_free_slots()
    print(before > 1_000_000, free() * 4 < before, all(len(each) == len(bytes(each)) for each in many[0]))
"""


def test_free_slots_are_filled_and_objects_stay_as_they_are() -> None:
    assert run_python(FILL).stdout.split() == ["True", "True", "True"]
