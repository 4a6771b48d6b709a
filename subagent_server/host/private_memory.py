"""The memory of a process, and what the kernel is to do with it (madvise(2)).

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
_KERNEL = ("[vdso]", "[vvar]", "[vvar_vclock]", "[vsyscall]")


def ranges(*, anonymous: bool = False) -> Iterator[Range]:
    """Yield the ranges of this process that are private and writable.

    `anonymous` leaves out files and the stack. Raises OSError: the kernel does not tell.
    """
    for each, rights, name in _mappings("self"):
        if rights == _WRITABLE and not (anonymous and name not in _ANONYMOUS):
            yield each


def ranges_of(pid: int) -> Iterator[tuple[Range, bool]]:
    """Yield the ranges that a process can read, each with whether it is private and writable.

    Raises:
        OSError: there is no such process, or the kernel does not tell.
    """
    for each, rights, name in _mappings(str(pid)):
        if rights.startswith("r") and name not in _KERNEL:
            yield each, rights == _WRITABLE


def _mappings(process: str) -> Iterator[tuple[Range, str, str]]:
    """Yield range, rights and name of each mapping (proc_pid_maps(5))."""
    for line in Path(f"/proc/{process}/maps").read_text(encoding="ascii", errors="replace").splitlines():
        place, rights, _, _, _, *name = line.split(maxsplit=5)
        begin, end = place.split("-")
        yield (int(begin, 16), int(end, 16)), rights, "".join(name)


def pages(which: Iterable[Range], process: str = "self") -> "Iterator[tuple[Range, array.array[int]]]":
    """Yield each range with what the kernel knows of its pages, a number for each (proc_pid_pagemap(5)).

    Raises:
        OSError: the kernel does not tell.
    """
    with Path(f"/proc/{process}/pagemap").open("rb", buffering=0) as file:
        for begin, end in which:
            first, number = begin // mmap.PAGESIZE, (end - begin) // mmap.PAGESIZE
            yield (begin, end), array.array("Q", os.pread(file.fileno(), number * _ENTRY, first * _ENTRY))


def advise(which: Iterable[Range], advice: int) -> None:
    """Give the kernel an advice for these ranges; one that it does not take leaves its range as it is."""
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for begin, end in which:
        madvise(begin, end - begin, advice)
