"""Memory that is moved into huge pages is what it was, in the process and in its forks."""

from tests.helpers.processes import run_python

GATHER = """
    import mmap, os
    from subagent_server.host import huge_pages
    size = 8 * huge_pages.HUGE
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for at in range(0, size, 4096):
        memory[at : at + 8] = at.to_bytes(8, "little")
    huge_pages.gather()
    whole = lambda: all(memory[at : at + 8] == at.to_bytes(8, "little") for at in range(0, size, 4096))
    print(whole())
    if not os.fork():
        memory[0:8] = bytes([255]) * 8
        os._exit(0)
    os.wait()
    print(whole())
"""


def test_memory_in_huge_pages_is_unchanged_and_no_fork_writes_to_it() -> None:
    assert run_python(GATHER).stdout.split() == ["True", "True"]
