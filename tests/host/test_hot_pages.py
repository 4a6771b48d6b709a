"""The pages that a fork writes to are found, and can be copied before they are needed."""

from tests.helpers.processes import run_python

FIND = """
    import ctypes, mmap, os
    from subagent_server.host import hot_pages
    size = 64 * mmap.PAGESIZE
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory[:] = b"a" * size
    first = ctypes.addressof(ctypes.c_char.from_buffer(memory))

    def doing(done):
        for page in (3, 4, 9):
            memory[page * mmap.PAGESIZE] = 98
        done()
        raise AssertionError("it goes on behind its end")

    found = hot_pages.written_by(doing)
    pages = {at for begin, end in found for at in range(begin, end, mmap.PAGESIZE)}
    print(sorted((at - first) // mmap.PAGESIZE for at in pages if first <= at < first + size))
    print(memory[:] == b"a" * size)
    if not os.fork():
        hot_pages.make_own(found)
        mine = {at for begin, end in hot_pages.own_pages() for at in range(begin, end, mmap.PAGESIZE)}
        print({first + page * mmap.PAGESIZE for page in (3, 4, 9)} <= mine, flush=True)
        print(memory[:] == b"a" * size, flush=True)
        os._exit(0)
    os.wait()
    print(hot_pages.written_by(lambda done: None), flush=True)
"""


def test_pages_that_are_written_to_are_found_and_copied_with_what_is_in_them() -> None:
    done = run_python(FIND)
    assert done.stdout.splitlines() == ["[3, 4, 9]", "True", "True", "True", "[]"], done.stderr
