"""Append-only JSON lines: whole lines in, whole lines out, whatever was cut off at the end.

Reading cost depends on what is asked, not on the size of the file.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from subagent_server.host.directory import Entry

_BLOCK = 64 * 1024
LONGEST_LINE = 64 << 20
"""In bytes: no longer line is read. Far more than any that is written."""


@dataclass(frozen=True)
class Page:
    """Some whole lines of a file and the byte offset just behind them."""

    lines: list[str]
    cursor: int
    at_end: bool


def append_line(file: Entry, record: dict[str, Any]) -> None:
    """Append one record as one write, so that every line of the file stays a whole record.

    A torn last line, left by a crash, is cut off first; a record lacking only its newline gets a newline.
    Only one process at a time may append to a file.

    Raises:
        OSError: the disk refused; the file is as it was.
    """
    line = json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n"
    _append(file, line, cut_torn_line=True)


def append_bytes(file: Entry, data: bytes) -> None:
    """Append `data`, which ends a line, in one write; a torn last line first gets its newline.

    Raises:
        OSError: as `append_line`.
    """
    _append(file, data, cut_torn_line=False)


def _append(file: Entry, data: bytes, *, cut_torn_line: bool) -> None:
    descriptor = file.open(os.O_RDWR | os.O_CREAT | os.O_APPEND)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            end = _last_newline(descriptor, size)
            if cut_torn_line and parse(os.pread(descriptor, LONGEST_LINE, end)) is None:
                os.ftruncate(descriptor, end)
                size = end
            else:
                data = b"\n" + data
        try:
            while data:
                data = data[os.write(descriptor, data) :]
        except OSError:
            os.ftruncate(descriptor, size)
            raise
    finally:
        os.close(descriptor)


def tail(file: Entry, count: int) -> Page:
    """Return the last `count` whole lines, or as many as lie in the last 64 MiB. A missing file has none."""
    try:
        with file.reader() as opened:
            end = _last_newline(opened.fileno(), os.fstat(opened.fileno()).st_size)
            blocks: list[bytes] = []
            position, newlines = end, 0
            while position > 0 and newlines <= count and end - position < LONGEST_LINE:
                start = max(0, position - _BLOCK)
                blocks.append(os.pread(opened.fileno(), position - start, start))
                newlines += blocks[-1].count(b"\n")
                position = start
    except FileNotFoundError:
        return Page([], 0, True)
    lines = b"".join(reversed(blocks)).decode("utf-8", "replace").split("\n")[:-1]
    whole = lines[1:] if position > 0 else lines  # before the first of them stands more of it, or its newline
    return Page(whole[-count:] if count else [], end, True)


def torn_line(file: Entry) -> str:
    """Return the text behind the last whole line: a line still being written, or cut off by a crash."""
    try:
        with file.reader() as opened:
            opened.seek(_last_newline(opened.fileno(), os.fstat(opened.fileno()).st_size))
            return opened.read(LONGEST_LINE).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""


def read_from(file: Entry, cursor: int, count: int, *, max_bytes: int = 1 << 20) -> Page:
    """Return up to `count` whole lines that begin at byte `cursor`, at most about `max_bytes` of them.

    A cursor behind the end of the file reads nothing. A single longer line is returned whole, up to 64 MiB.
    """
    try:
        with file.reader() as opened:
            size = os.fstat(opened.fileno()).st_size
            opened.seek(min(cursor, size))
            lines: list[bytes] = []
            position = opened.tell()
            for line in _lines(opened):
                if not line.endswith(b"\n") or len(lines) == count:
                    break
                if lines and position + len(line) - cursor > max_bytes:
                    break
                lines.append(line)
                position += len(line)
    except FileNotFoundError:
        return Page([], 0, True)
    text = [line.decode("utf-8", "replace").rstrip("\n") for line in lines]
    return Page(text, position, position >= _complete_size(file))


def records(file: Entry) -> Iterator[dict[str, Any]]:
    """Yield each whole record of a file, oldest first; a line that is not a JSON object is passed over."""
    try:
        with file.reader() as opened:
            for line in _lines(opened):
                record = parse(line)
                if record is not None:
                    yield record
    except FileNotFoundError:
        return


def latest(file: Entry, wanted: frozenset[str], *, within: int = 400) -> dict[str, dict[str, Any]]:
    """Return the last record of each wanted `type` among the last `within` lines."""
    found: dict[str, dict[str, Any]] = {}
    for line in reversed(tail(file, within).lines):
        record = parse(line)
        if record is not None and record.get("type") in wanted and record["type"] not in found:
            found[record["type"]] = record
            if len(found) == len(wanted):
                break
    return found


def last_of(file: Entry, kind: str, *, max_bytes: int = 32 << 20) -> dict[str, Any] | None:
    """Return the last record of `type` `kind`, however many of other types follow, within `max_bytes`."""
    needle = f'"type":"{kind}"'.encode()
    try:
        with file.reader() as opened:
            end = _last_newline(opened.fileno(), os.fstat(opened.fileno()).st_size)
            position = end
            rest: list[bytes] = []  # of a line whose beginning was not read yet, its last piece first
            while position > 0 and end - position < max_bytes:
                start = max(0, position - _BLOCK)
                part = os.pread(opened.fileno(), position - start, start)
                position = start
                first = 0 if position == 0 else part.find(b"\n") + 1  # before it stands part of a line
                if first == 0 and position > 0:
                    rest.append(part)
                    continue
                for line in reversed(b"".join([part[first:], *reversed(rest)]).split(b"\n")):
                    record = parse(line) if needle in line else None
                    if record is not None and record.get("type") == kind:
                        return record
                rest = [part[:first]]
    except FileNotFoundError:
        return None
    return None


def parse(line: str | bytes) -> dict[str, Any] | None:
    """Return the object of a line, or None if there is none.

    The line is torn, nested deeper than any record, or has a `type` that no record has.
    """
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and isinstance(record.get("type", ""), str) else None


def _lines(opened: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file, up to a line longer than any we write."""
    while (line := opened.readline(LONGEST_LINE)) and (line.endswith(b"\n") or len(line) < LONGEST_LINE):
        yield line


def _last_newline(descriptor: int, size: int) -> int:
    """Return the offset just behind the last newline: a line still being written begins there.

    0 if there is no newline, or no newline in the last 64 MiB.
    """
    position = size
    while position > 0 and size - position < LONGEST_LINE:
        start = max(0, position - _BLOCK)
        at = os.pread(descriptor, position - start, start).rfind(b"\n")
        if at >= 0:
            return start + at + 1
        position = start
    return 0


def _complete_size(file: Entry) -> int:
    with file.reader() as opened:
        return _last_newline(opened.fileno(), os.fstat(opened.fileno()).st_size)
