"""Cut the input of a client into lines. A line has a bound: only both ends of a longer line are kept."""

from collections import deque
from dataclasses import dataclass

MAX_LINE_BYTES = 128 << 20
"""Twice the largest payload, which grows when JSON escapes it."""
KEPT_BYTES = 1_024
"""How much is kept of each end of a longer line: the id of a request stands at one of them."""


@dataclass(frozen=True)
class LongLine:
    """A line that was too long to be kept."""

    size: int
    head: bytes
    tail: bytes

    def __len__(self) -> int:
        return self.size


class LineCutter:
    """Takes bytes as they come, and puts whole lines without their ends into `lines`."""

    def __init__(self) -> None:
        self.lines: deque[bytes | LongLine] = deque()
        self._begin()

    def take(self, data: bytes) -> None:
        """Take what has come; nothing is the end of input. A last line without an end is one too."""
        *whole, rest = data.split(b"\n")
        for part in whole:
            self._add(part)
            self._end()
        if rest:
            self._add(rest)
        elif not data and self._size:
            self._end()

    def _begin(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self._head = self._tail = b""

    def _add(self, part: bytes) -> None:
        self._size += len(part)
        self._head = (self._head + part[:KEPT_BYTES])[:KEPT_BYTES]
        self._tail = (self._tail + part[-KEPT_BYTES:])[-KEPT_BYTES:]
        self._parts.append(part)
        if self._size > MAX_LINE_BYTES:
            self._parts.clear()

    def _end(self) -> None:
        is_long = self._size > MAX_LINE_BYTES
        self.lines.append(LongLine(self._size, self._head, self._tail) if is_long else b"".join(self._parts))
        self._begin()
