"""Free places between objects are taken, so that new objects lie in new memory."""

from tests.helpers.processes import run_python

FILL = """
    from subagent_server.host import gaps
    many = [[bytes(number % 400) for number in range(20_000)] for _ in range(2)]
    del many[0][::2], many[1][::3]
    free = lambda: sum(size * places for size, places in gaps._free_small())
    before = free()
    gaps.fill()
    print(before > 1_000_000, free() * 4 < before, all(len(each) == len(bytes(each)) for each in many[0]))
"""


def test_free_places_are_taken_and_objects_stay_what_they_are() -> None:
    assert run_python(FILL).stdout.split() == ["True", "True", "True"]
