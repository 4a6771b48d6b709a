"""Append-only JSON lines: whole lines in, whole lines out, whatever was cut off at the end.

Reading cost depends on what is asked, not on the size of the file.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_BLOCK = 64 * 1024


@dataclass(frozen=True)
class Page:
    """Some whole lines of a file and the byte offset just behind them."""

    lines: list[str]
    cursor: int
    at_end: bool


def append_line(path: Path, record: dict[str, Any]) -> None:
    """Append one record as one write. A torn line that a crash left before it is closed first.

    Raises:
        OSError: the disk refused; earlier lines are whole.
    """
    line = json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n"
    append_bytes(path, line)


def append_bytes(path: Path, data: bytes) -> None:
    """Append `data`, which ends a line, in one write; a torn last line before it is closed first."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            data = b"\n" + data
        while data:
            data = data[os.write(descriptor, data) :]
    finally:
        os.close(descriptor)


def tail(path: Path, count: int) -> Page:
    """Return the last `count` whole lines. A missing file has none."""
    try:
        with path.open("rb") as file:
            end = _last_newline(file.fileno(), os.fstat(file.fileno()).st_size)
            blocks: list[bytes] = []
            position, newlines = end, 0
            while position > 0 and newlines <= count:
                start = max(0, position - _BLOCK)
                blocks.append(os.pread(file.fileno(), position - start, start))
                newlines += blocks[-1].count(b"\n")
                position = start
    except FileNotFoundError:
        return Page([], 0, True)
    lines = b"".join(reversed(blocks)).decode("utf-8", "replace").split("\n")[:-1]
    return Page(lines[-count:] if count else [], end, True)


def torn_line(path: Path) -> str:
    """Return what stands behind the last whole line: one that is being written, or that a crash cut off."""
    try:
        with path.open("rb") as file:
            file.seek(_last_newline(file.fileno(), os.fstat(file.fileno()).st_size))
            return file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""


def read_from(path: Path, cursor: int, count: int, *, max_bytes: int = 1 << 20) -> Page:
    """Return up to `count` whole lines that begin at byte `cursor`, at most about `max_bytes` of them.

    A cursor behind the end of the file reads nothing. A single longer line is returned whole.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(min(cursor, size))
            lines: list[bytes] = []
            position = file.tell()
            for line in file:
                if not line.endswith(b"\n") or len(lines) == count:
                    break
                if lines and position + len(line) - cursor > max_bytes:
                    break
                lines.append(line)
                position += len(line)
    except FileNotFoundError:
        return Page([], 0, True)
    text = [line.decode("utf-8", "replace").rstrip("\n") for line in lines]
    return Page(text, position, position >= _complete_size(path))


def records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield each whole record of a file, oldest first; what is no JSON object is passed over."""
    try:
        with path.open("rb") as file:
            for line in file:
                record = parse(line)
                if record is not None:
                    yield record
    except FileNotFoundError:
        return


def latest(path: Path, wanted: frozenset[str], *, within: int = 400) -> dict[str, dict[str, Any]]:
    """Return the last record of each wanted `type` among the last `within` lines."""
    found: dict[str, dict[str, Any]] = {}
    for line in reversed(tail(path, within).lines):
        record = parse(line)
        if record is not None and record.get("type") in wanted and record["type"] not in found:
            found[record["type"]] = record
            if len(found) == len(wanted):
                break
    return found


def last_of(path: Path, kind: str, *, max_bytes: int = 32 << 20) -> dict[str, Any] | None:
    """Return the last record of `type` `kind`, however many of other types follow, within `max_bytes`."""
    needle = f'"type":"{kind}"'.encode()
    try:
        with path.open("rb") as file:
            end = _last_newline(file.fileno(), os.fstat(file.fileno()).st_size)
            data, position = b"", end
            while position > 0 and end - position < max_bytes:
                start = max(0, position - _BLOCK)
                data = os.pread(file.fileno(), position - start, start) + data
                position = start
                first = 0 if position == 0 else data.find(b"\n") + 1  # before it stands part of a line
                if first == 0 and position > 0:
                    continue
                for line in reversed(data[first:].split(b"\n")):
                    record = parse(line) if needle in line else None
                    if record is not None and record.get("type") == kind:
                        return record
                data = data[:first]
    except FileNotFoundError:
        return None
    return None


def parse(line: str | bytes) -> dict[str, Any] | None:
    """Return the object of one line, or None where it is torn (or nested deeper than anything we write)."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _last_newline(descriptor: int, size: int) -> int:
    """Return the offset just behind the last newline: what follows is a line still being written."""
    position = size
    while position > 0:
        start = max(0, position - _BLOCK)
        at = os.pread(descriptor, position - start, start).rfind(b"\n")
        if at >= 0:
            return start + at + 1
        position = start
    return 0


def _complete_size(path: Path) -> int:
    with path.open("rb") as file:
        return _last_newline(file.fileno(), os.fstat(file.fileno()).st_size)
