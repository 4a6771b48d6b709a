"""Pages that every fork of a process will use, made ready before it is in a hurry.

A fork shares its memory with the process it comes from until it writes to it: each first write to a page
stops it for the copy, thousands of times in a row, because Python writes wherever it reads. And what lies in
files, a fork has to find again, page by page. Which pages those are is seen at a fork that has done the same.
Linux only. Standard library only.
"""

import array
import marshal
import mmap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from subagent_server.host import private_memory
from subagent_server.host.private_memory import Range

_MADV_POPULATE_READ, _MADV_POPULATE_WRITE = 22, 23
_PRESENT, _FILE, _ALONE = 1 << 63, 1 << 61, 1 << 56
_KIND = _PRESENT | _FILE | _ALONE
_OWN_COPY = _PRESENT | _ALONE
"""Of the bits that tell the kind of a page (proc_pid_pagemap(5)): in memory, no file's, nobody else's."""


def _none() -> "array.array[int]":
    return array.array("Q")


@dataclass(frozen=True)
class HotPages:
    """The pages that a process uses: addresses of the begin and the end of each row of neighbours, in turn.

    They are numbers in one place, not objects: a fork that goes through them writes to none of them.
    """

    own: "array.array[int]" = field(default_factory=_none)
    """Those of which it has copies that it shares with nobody, because it has written to them."""
    used: "array.array[int]" = field(default_factory=_none)
    """Those, and all others that it has come to use."""

    @classmethod
    def of(cls, pid: int) -> "HotPages":
        """Return what a process uses at this moment. It has to be another one, or in rest.

        Raises:
            OSError: it is gone, or the kernel does not tell.
        """
        hot = cls()
        writable = dict(private_memory.ranges_of(pid))
        for each, entries in private_memory.pages(writable, str(pid)):
            present = (number for number, entry in enumerate(entries) if entry & _PRESENT)
            hot.used.extend(_addresses(each, present))
            if writable[each]:
                own = (number for number, entry in enumerate(entries) if entry & _KIND == _OWN_COPY)
                hot.own.extend(_addresses(each, own))
        return hot

    def make_ready(self) -> None:
        """Copy and find these pages now, as far as the kernel does that; others stay for later."""
        private_memory.advise(_ranges(self.own), _MADV_POPULATE_WRITE)
        private_memory.advise(_ranges(self.used), _MADV_POPULATE_READ)


@dataclass(frozen=True)
class HotRun:
    """The pages that the processes of every run use."""

    keeper: HotPages = field(default_factory=HotPages)
    worker: HotPages = field(default_factory=HotPages)

    def to_bytes(self) -> bytes:
        """Return it for another process of the same program."""
        rows = (self.keeper.own, self.keeper.used, self.worker.own, self.worker.used)
        return marshal.dumps([each.tobytes() for each in rows])

    @classmethod
    def from_bytes(cls, data: bytes) -> "HotRun":
        """Return what `to_bytes` has written; nothing where it has not written all of it."""
        try:
            rows = [array.array("Q", each) for each in marshal.loads(data)]
        except EOFError:
            return cls()
        return cls(HotPages(*rows[:2]), HotPages(*rows[2:]))


def _ranges(rows: "array.array[int]") -> Iterator[Range]:
    return zip(rows[::2], rows[1::2], strict=True)


def _addresses(within: Range, numbers: Iterable[int]) -> Iterator[int]:
    """Yield the addresses of the begin and the end of each row of neighbours among these pages of a range."""
    after = -1
    for number in numbers:
        if number != after:
            if after >= 0:
                yield within[0] + after * mmap.PAGESIZE
            yield within[0] + number * mmap.PAGESIZE
        after = number + 1
    if after >= 0:
        yield within[0] + after * mmap.PAGESIZE
