"""The memory that belongs to this process alone, and what the kernel is to do with it (madvise(2)).

Linux only. Standard library only.
"""

import array
import ctypes
import mmap
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

Range = tuple[int, int]
"""Addresses of the first byte, and of the one after the last."""

_ENTRY = 8
_WRITABLE = "rw-p"
_ANONYMOUS = ("", "[heap]")


def ranges(*, anonymous: bool = False) -> Iterator[Range]:
    """Yield the ranges that are private and writable; `anonymous` leaves out files and the stack.

    Raises:
        OSError: the kernel does not tell (proc_pid_maps(5)).
    """
    for line in Path("/proc/self/maps").read_text(encoding="ascii", errors="replace").splitlines():
        place, rights, _, _, _, *name = line.split(maxsplit=5)
        if rights == _WRITABLE and not (anonymous and "".join(name) not in _ANONYMOUS):
            begin, end = place.split("-")
            yield int(begin, 16), int(end, 16)


def pages(which: Iterable[Range]) -> "Iterator[tuple[Range, array.array[int]]]":
    """Yield each range with what the kernel knows of its pages, a number for each (proc_pid_pagemap(5)).

    Raises:
        OSError: the kernel does not tell.
    """
    with Path("/proc/self/pagemap").open("rb", buffering=0) as file:
        for begin, end in which:
            first, number = begin // mmap.PAGESIZE, (end - begin) // mmap.PAGESIZE
            yield (begin, end), array.array("Q", os.pread(file.fileno(), number * _ENTRY, first * _ENTRY))


def advise(which: Iterable[Range], advice: int) -> None:
    """Give the kernel an advice for these ranges; one that it does not take leaves its range as it is."""
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for begin, end in which:
        madvise(begin, end - begin, advice)
