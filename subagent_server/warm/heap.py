"""Fill the holes in the zygote's heap, so that new objects of its forks do not copy shared pages.

New objects are put into the slots of freed ones, which lie all over the memory. In a fork each such slot
means a copy of the page around it. Without free slots the objects of a fork lie together in memory of its
own. CPython and the GNU C library only; elsewhere nothing happens. Standard library only.

This is not too pretty: it reads the figures that the interpreter prints for its developers, and takes the
word of mallinfo2(3). It changes nothing but memory that is free, and if a figure is missing it does less.
"""

import ctypes
import os
import sys
from collections.abc import Iterator

_M_ARENA_MAX = -8
_BYTES_HEAD = sys.getsizeof(b"")
_MALLOC_HEAD = 8
_LARGE = (*(1 << bits for bits in range(20, 11, -1)), *range(2048, 512, -16))
"""Sizes of objects that the C library places, in bytes: large ones first, so that little is cut up."""
_FIGURES = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"

_filling: list[object] = []


class _Figures(ctypes.Structure):
    """The result of mallinfo2(3); `keepcost` is the size of the free memory at the end of the heap."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in _FIGURES.split())
    keepcost: int


def keep_to_one_arena() -> None:
    """Let all threads take memory from one arena (mallopt(3)), with one set of free slots. Call it first."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)


def fill_free_slots() -> None:
    """Take every free slot for objects, for as long as this process and its forks live."""
    for size, slots in list(free_slots()):
        _filling.extend(_small(size) for _ in range(slots))
    _fill_large()


def _small(size: int) -> object:
    """Return a new object that takes a slot of `size` bytes, a multiple of 16."""
    if size >= _BYTES_HEAD:
        return bytes(size - _BYTES_HEAD)
    return object() if size == 16 else float(size)


def free_slots() -> Iterator[tuple[int, int]]:
    """Yield each size of small objects with its number of free slots, as the interpreter prints them."""
    for line in _statistics().splitlines():
        words = line.split()
        if len(words) == 5 and all(word.isdecimal() for word in words):  # class, size, pools, used, free
            yield int(words[1]), int(words[4])


def _statistics() -> str:
    print_statistics = getattr(sys, "_debugmallocstats", None)
    if print_statistics is None:
        return ""
    output, stderr = os.memfd_create("statistics", os.MFD_CLOEXEC), os.dup(2)
    try:
        os.dup2(output, 2)
        print_statistics()
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
    with os.fdopen(output, "rb") as file:
        file.seek(0)
        return file.read().decode("ascii", "replace")


def _fill_large() -> None:
    """Make objects of each size until one comes from the end of the heap: then it has no free slot left."""
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
