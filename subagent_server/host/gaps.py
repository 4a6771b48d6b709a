"""Closing the gaps between the objects of a process, before it is forked.

The interpreter puts small objects into the places of others that are gone, which are all over the memory. In
a fork each such place means a copy of the page around it. With no place left, what a fork makes lies together
in memory of its own. CPython only; elsewhere nothing happens. Standard library only.
"""

import os
import sys
from collections.abc import Iterator

_BYTES_HEAD = sys.getsizeof(b"")
_filling: list[list[object]] = []


def fill() -> None:
    """Take every free place for small objects, for as long as this process and its forks live."""
    for size, places in list(_free_places()):
        _filling.append([_object_of(size) for _ in range(places)])


def _object_of(size: int) -> object:
    """Return a new object that takes a place of `size` bytes, a multiple of 16."""
    if size >= _BYTES_HEAD:
        return bytes(size - _BYTES_HEAD)
    return object() if size == 16 else float(size)


def _free_places() -> Iterator[tuple[int, int]]:
    """Yield how many places are free for each size of object, as the interpreter tells on stderr."""
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
