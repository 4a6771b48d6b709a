"""Pages that every fork of a process will write to, copied before it is in a hurry.

A fork shares its memory with the process it comes from until it writes to it: each first write to a page
stops it for the copy, thousands of times in a row, because Python writes wherever it reads. Which pages those
are, a fork that does the same for practice finds out. Linux only. Standard library only.
"""

import array
import mmap
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import NoReturn

from subagent_server.host import private_memory
from subagent_server.host.private_memory import Range
from subagent_server.host.telling import flush, tell_exception

PATIENCE_SECONDS = 20
"""How long a fork may take to find out."""
_MADV_POPULATE_WRITE = 23
_PRESENT, _FILE, _ALONE = 1 << 63, 1 << 61, 1 << 56
_KIND = _PRESENT | _FILE | _ALONE
_OWN_COPY = _PRESENT | _ALONE
"""Of the bits that tell the kind of a page (proc_pid_pagemap(5)): in memory, no file's, nobody else's."""


def written_by(doing: Callable[[Callable[[], NoReturn]], None]) -> list[Range]:
    """Return the pages that `doing` has written to when it calls what it is given, in a fork that ends there.

    None where it never does, or where they cannot be found out.
    """
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(PATIENCE_SECONDS)
        try:
            doing(lambda: _tell(into))
        except BaseException:  # noqa: BLE001 - the outermost frame of a process
            tell_exception()
        finally:
            flush()
            os._exit(1)
    os.close(into)
    with os.fdopen(out, "rb") as answer:
        numbers = array.array("Q", answer.read())
    os.waitpid(pid, 0)
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def _tell(descriptor: int) -> NoReturn:
    os.write(descriptor, array.array("Q", [number for each in own_pages() for number in each]).tobytes())
    os._exit(0)


def own_pages() -> Iterator[Range]:
    """Yield the ranges of this process's private memory of which it has copies that it shares with nobody."""
    with suppress(FileNotFoundError):
        for (begin, _), entries in private_memory.pages(list(private_memory.ranges())):
            own = [number for number, entry in enumerate(entries) if entry & _KIND == _OWN_COPY]
            yield from (
                (begin + first * mmap.PAGESIZE, begin + after * mmap.PAGESIZE)
                for first, after in _in_a_row(own)
            )


def make_own(ranges: Iterable[Range]) -> None:
    """Copy these pages now, as far as the kernel does that; others stay to be copied later."""
    private_memory.advise(ranges, _MADV_POPULATE_WRITE)


def _in_a_row(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield where each row of neighbours begins, and the number after its end."""
    first = after = -1
    for number in numbers:
        if number != after:
            if first >= 0:
                yield first, after
            first = number
        after = number + 1
    if first >= 0:
        yield first, after
