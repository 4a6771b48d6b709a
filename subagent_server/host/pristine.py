"""Giving memory back in a process that waits: pages that are again as they were in the warm process.

A fork gets a copy of each page that it writes to, and CPython writes wherever it looks: it counts references
inside of its objects. Afterwards most of these counts are what they were, but the copies stay. So the warm
process moves its memory into a file that is only in memory, where it stays as it is, and whoever is forked
from it can drop its copy of a page that is no different from the file's. Objects that the warm process never
frees are marked, by a count of references that cannot end: whatever it is now, it need not be kept.

The work is done by `_pristine.c`, which is built where this package is installed. Where it could not be
built, and elsewhere than with CPython 3.11 on 64-bit Linux, nothing is given back. Standard library only.
"""

import array
import ctypes
import gc
import mmap
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from itertools import compress
from pathlib import Path
from types import CodeType

from subagent_server.host import private_memory

REST_SECONDS = 8.0
"""How long nothing is done before memory is given back: to have it again takes some milliseconds."""
_PAGE = 4096
_SMALLEST = 1 << 20
"""Smaller ranges are left out: they are the C library's and the loader's."""

_kept: dict[private_memory.Range, int] = {}
"""The ranges that are mapped from the file, and where what the file holds of each can be read."""
_dropped = array.array("Q")
"""Where each row of pages begins and ends that was given back last."""


def mark_objects() -> None:
    """Mark all objects there are as never freed, but for those that do something when they are."""
    library = _library()
    if library is None:
        return
    staying = _Staying()
    objects = [each for each in gc.get_objects() if staying[type(each)]]
    while objects:
        fresh = bytearray(len(objects))
        flags = (ctypes.c_ubyte * len(objects)).from_buffer(fresh)
        addresses = array.array("Q", map(id, objects))
        library.pristine_mark(_address(addresses), len(objects), flags)
        held = _held_by(list(compress(objects, fresh)))
        objects = [each for each in held if staying[type(each)]]


def keep() -> None:
    """Keep the memory of this process as it is now, for itself and its forks. Call it once, in one thread.

    Raises:
        OSError: this cannot be done here, or not for all of it.
    """
    library = _library()
    if library is None:
        raise OSError("this needs CPython 3.11 on 64-bit Linux, and what is built of _pristine.c")
    ranges = [each for each in private_memory.ranges(anonymous=True) if each[1] - each[0] >= _SMALLEST]
    file = os.memfd_create("subagent-pristine", os.MFD_CLOEXEC)
    try:
        os.ftruncate(file, sum(end - begin for begin, end in ranges))
        original = _mapped(file)
        offset = 0
        for begin, end in ranges:
            if library.pristine_keep(begin, end - begin, original + offset, file, offset):
                raise OSError("the memory could not be moved into a file")
            _kept[begin, end] = original + offset
            offset += end - begin
        _c_library().mprotect(original, offset, mmap.PROT_READ)
    finally:
        os.close(file)


def is_kept() -> bool:
    """Whether this process, or the one that it was forked from, has kept its memory."""
    return bool(_kept)


def give_back() -> None:
    """Drop copies of pages that are as they were; none if there are other threads.

    One of those could write to a page between the look at it and its end.
    """
    library = _library() if _kept and is_alone() else None
    if library is None:
        return
    del _dropped[:]  # what was given back before and is not in use yet may come back page by page
    with suppress(OSError):
        for each, entries in private_memory.pages(list(_kept)):
            rows = array.array("Q", bytes(_dropped.itemsize * (len(entries) + 1)))
            number = library.pristine_give_back(
                each[0], _kept[each], _address(entries), len(entries), _address(rows)
            )
            _dropped.extend(rows[: 2 * number])


def take_again() -> None:
    """Have copies again of what was given back: whoever begins to work will soon write to most of it."""
    library = _library() if _dropped else None
    if library is not None:
        library.pristine_take_again(_address(_dropped), len(_dropped) // 2)
        del _dropped[:]


def is_alone() -> bool:
    """Whether this process has one thread, whoever has started it."""
    return len(list(Path("/proc/self/task").iterdir())) == 1


def _held_by(objects: list[object]) -> Iterator[object]:
    """Yield what these objects refer to, the garbage collector's view and what it does not look into."""
    yield from gc.get_referents(*objects)
    for each in objects:
        if isinstance(each, CodeType):
            yield from (each.co_consts, each.co_names, each.co_linetable, each.co_exceptiontable)
            yield from (each.co_filename, each.co_name, each.co_qualname)


class _Staying(dict[type, bool]):
    """Of which types the objects may stay for ever."""

    def __missing__(self, kind: type) -> bool:
        self[kind] = not hasattr(kind, "__del__")
        return self[kind]


def _mapped(file: int) -> int:
    """Map a whole file, for as long as this process and its forks live; return where."""
    size = os.fstat(file).st_size
    place = _c_library().mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, file, 0)
    if place in (None, ctypes.c_void_p(-1).value):
        raise OSError("there is no room to map the file")
    return int(place)


def _address(numbers: "array.array[int]") -> int:
    return numbers.buffer_info()[0]


@cache
def _c_library() -> ctypes.CDLL:
    library = ctypes.CDLL(None)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = (
        *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long),
    )
    library.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return library


@cache
def _library() -> ctypes.PyDLL | None:
    """Return what was built of `_pristine.c`, whose functions keep the lock of the interpreter."""
    if not _is_suited():
        return None
    try:
        library = ctypes.PyDLL(str(Path(__file__).with_name(f"_pristine{EXTENSION_SUFFIXES[0]}")))
    except OSError:
        return None
    address, size = ctypes.c_void_p, ctypes.c_size_t
    library.pristine_mark.argtypes = (address, size, address)
    library.pristine_mark.restype = None
    library.pristine_keep.argtypes = (address, size, address, ctypes.c_int, ctypes.c_int64)
    library.pristine_give_back.argtypes = (address, address, address, size, address)
    library.pristine_give_back.restype = size
    library.pristine_take_again.argtypes = (address, size)
    library.pristine_take_again.restype = None
    return library


def _is_suited() -> bool:
    """Whether this is the interpreter and the kind of machine that the C part was made for."""
    return (
        sys.platform == "linux"
        and (sys.implementation.name, *sys.version_info[:2]) == ("cpython", 3, 11)
        and (ctypes.sizeof(ctypes.c_void_p), mmap.PAGESIZE) == (8, _PAGE)
    )
