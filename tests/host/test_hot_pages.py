"""The pages that a fork uses are seen from outside, and others can have them ready before they need them."""

from tests.helpers.processes import run_python

FIND = """
    import ctypes, mmap, os, tempfile
    from subagent_server.host.hot_pages import HotPages, HotRun
    page, size = mmap.PAGESIZE, 64 * mmap.PAGESIZE
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory[:] = b"a" * size
    file = tempfile.TemporaryFile()
    file.write(b"b" * size)
    file.flush()
    mapped = mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ, flags=mmap.MAP_PRIVATE)
    first = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    maps = [line.split() for line in open("/proc/self/maps")]
    inode = os.fstat(file.fileno()).st_ino
    (in_file,) = [int(line[0].split("-")[0], 16) for line in maps if int(line[4]) == inode]

    def pages(rows, begin):
        every = {at for low, high in zip(rows[::2], rows[1::2]) for at in range(low, high, page)}
        return sorted((at - begin) // page for at in every if begin <= at < begin + size)

    def forked(doing):
        told, tell = os.pipe()
        pid = os.fork()
        if not pid:
            doing()
            os.write(tell, b".")
            os.kill(os.getpid(), 19)
        os.read(told, 1)
        found = HotRun.from_bytes(HotRun(HotPages.of(pid), HotPages.of(pid)).to_bytes())
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        return found

    def use():
        for number in (3, 4, 9):
            memory[number * page] = 98
        assert mapped[0] == 98

    found = forked(use)
    print(pages(found.keeper.own, first), pages(found.worker.own, first), pages(found.worker.own, in_file))
    print(0 in pages(found.worker.used, in_file), pages(forked(lambda: None).worker.used, in_file))
    again = forked(found.worker.make_ready).worker
    print(pages(again.own, first), pages(again.used, in_file) == pages(found.worker.used, in_file))
    whole = found.to_bytes()
    cut = [HotRun.from_bytes(whole[:size]) for size in range(0, len(whole), 7)]
    print(memory[:] == b"a" * size, HotRun.from_bytes(whole) == found, cut == [HotRun()] * len(cut))
"""


def test_pages_that_are_used_are_seen_and_made_ready_with_what_is_in_them() -> None:
    done = run_python(FIND)
    assert done.stdout.splitlines() == [
        "[3, 4, 9] [3, 4, 9] []",
        "True []",
        "[3, 4, 9] True",
        "True True True",
    ], done.stderr
