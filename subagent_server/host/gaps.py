"""Closing the gaps between the objects of a process, before it is forked.

New objects are put into the places of others that are gone, which are all over the memory. In a fork each
such place means a copy of the page around it. With no place left, what a fork makes lies together in memory
of its own. CPython and the GNU C library only; elsewhere nothing happens. Standard library only.
"""

import ctypes
import os
import sys
from collections.abc import Iterator

_M_ARENA_MAX = -8
_BYTES_HEAD = sys.getsizeof(b"")
_MALLOC_HEAD = 8
_LARGE = (*(1 << bits for bits in range(20, 11, -1)), *range(2048, 512, -16))
"""Sizes of objects whose places are the C library's, in bytes: large ones first, so that little is cut up."""
_FIGURES = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"

_filling: list[object] = []


class _Figures(ctypes.Structure):
    """What mallinfo2(3) tells; `keepcost` is the size of the free memory at the end of the heap."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in _FIGURES.split())
    keepcost: int


def keep_to_one_heap() -> None:
    """Let all threads take memory from one place, which has one set of gaps (mallopt(3)). Call it first."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)


def fill() -> None:
    """Take every free place for objects, for as long as this process and its forks live."""
    for size, places in list(_free_small()):
        _filling.extend(_small(size) for _ in range(places))
    _fill_large()


def _small(size: int) -> object:
    """Return a new object that takes a place of `size` bytes, a multiple of 16."""
    if size >= _BYTES_HEAD:
        return bytes(size - _BYTES_HEAD)
    return object() if size == 16 else float(size)


def _free_small() -> Iterator[tuple[int, int]]:
    """Yield how many places are free for each size of small objects, as the interpreter tells on stderr."""
    for line in _statistics().splitlines():
        words = line.split()
        if len(words) == 5 and all(word.isdecimal() for word in words):  # class, size, pools, used, free
            yield int(words[1]), int(words[4])


def _statistics() -> str:
    tell = getattr(sys, "_debugmallocstats", None)
    if tell is None:
        return ""
    told, stderr = os.memfd_create("statistics", os.MFD_CLOEXEC), os.dup(2)
    try:
        os.dup2(told, 2)
        tell()
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
    with os.fdopen(told, "rb") as file:
        file.seek(0)
        return file.read().decode("ascii", "replace")


def _fill_large() -> None:
    """Make objects of each size until one comes from the end of the heap: then there is no gap for it."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallinfo2"):
        return
    library.mallinfo2.restype = _Figures
    library.sbrk.restype = ctypes.c_size_t
    for size in _LARGE:
        while True:
            end = library.sbrk(0) - library.mallinfo2().keepcost
            filling = bytes(size - _BYTES_HEAD - _MALLOC_HEAD)
            if id(filling) >= end:
                break
            _filling.append(filling)
