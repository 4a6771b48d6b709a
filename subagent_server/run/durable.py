"""Files that are either the old or the new, whatever happens: temp, fsync, rename, fsync directory.

Standard library only: the shim imports this module.
"""

import errno
import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from subagent_server.run import processes
from subagent_server.run.errors import NotDurable, StorageFailed, storing
from subagent_server.run.files import Directory, Entry, held_open, write_all

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def prepare(file: Entry, data: bytes) -> Entry:
    """Write `data` durably under a temporary name next to `file` and return that name.

    Raises:
        StorageFailed: the disk refused; nothing is left behind.
    """
    writer = f"{processes.host_tag()}.{os.getpid()}"
    temporary = file.directory.entry(f".{file.name}.{writer}.{os.urandom(4).hex()}.tmp")
    _make(temporary, data, file)
    return temporary


def commit(temporary: Entry, file: Entry) -> None:
    """Rename a prepared file to its name, durably.

    Raises:
        StorageFailed: the rename failed; the old content is whole.
        NotDurable: the file has its name, but the disk did not confirm that the name outlives a power cut.
    """
    try:
        temporary.rename(file)
    except OSError as error:
        discard(temporary)
        raise StorageFailed(file.path, error.strerror or str(error)) from error
    try:
        file.directory.sync()
    except OSError as error:
        raise NotDurable(file.path, error.strerror or str(error)) from error


def read_object(file: Entry, limit: int) -> dict[str, Any]:
    """Return the object of a JSON file; empty if the file cannot be read, or holds anything else."""
    try:
        return as_object(file.read(limit)) or {}
    except OSError:
        return {}


def as_object(text: str | bytes) -> dict[str, Any] | None:
    """Return the object that a text is as JSON; None if it is anything else, or nested too deep."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def with_texts(data: Any, change: Callable[[str], str]) -> Any:
    """Return JSON data in which every text and every key is changed."""
    if isinstance(data, str):
        return change(data)
    if isinstance(data, dict):
        return {with_texts(key, change): with_texts(value, change) for key, value in data.items()}
    if isinstance(data, list):
        return [with_texts(value, change) for value in data]
    return data


def write_durably(file: Entry, data: bytes) -> None:
    """Replace the content of `file` with `data`, durably and at once for every reader.

    Files that killed writers left in its directory are removed first: often nobody else reads there.

    Raises:
        StorageFailed: the disk refused; the old content is whole, or (NotDurable) the new one.
    """
    remove_leftovers(file.directory)
    commit(prepare(file, data), file)


def write_new(file: Entry, data: bytes) -> None:
    """Make a file with `data`, durably. Its name becomes durable with the next durable file of its directory.

    Raises:
        StorageFailed: the disk refused, and nothing is left behind; or the file exists.
    """
    _make(file, data, file)


def _make(made: Entry, data: bytes, file: Entry) -> None:
    """Make a file, durably, which is or will be `file`; an existing file stays. Raises StorageFailed."""
    try:
        with held_open(made.open(os.O_WRONLY | os.O_CREAT | os.O_EXCL)) as descriptor:
            write_all(descriptor, data)
            os.fsync(descriptor)
    except OSError as error:
        if not isinstance(error, FileExistsError):
            discard(made)
        raise StorageFailed(file.path, error.strerror or str(error)) from error


def reserve(spare: Entry, size: int) -> None:
    """Keep `size` bytes of the disk in the file `spare`, for `write_reserved`. A full disk keeps fewer."""
    with suppress(OSError), held_open(spare.open(os.O_WRONLY | os.O_CREAT)) as descriptor:
        os.posix_fallocate(descriptor, 0, size)


def write_reserved(file: Entry, spare: Entry, data: bytes) -> None:
    """Do as `write_durably`, and use up the room kept by `spare`: the disk may be full.

    Raises:
        StorageFailed: `spare` is too small, or the disk refused; the old content is whole.
    """
    with storing(file.path), held_open(spare.open(os.O_WRONLY)) as descriptor:
        if os.fstat(descriptor).st_size < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_all(descriptor, data)
        os.ftruncate(descriptor, len(data))
        os.fsync(descriptor)
    commit(spare, file)


def is_full(error: StorageFailed) -> bool:
    """Whether a write failed for want of room, and for nothing else; what has its name was written."""
    return not isinstance(error, NotDurable) and getattr(error.__cause__, "errno", None) in _NO_ROOM


def is_read_only(error: StorageFailed) -> bool:
    """Whether a write failed because the file system can only be read."""
    return getattr(error.__cause__, "errno", None) == errno.EROFS


def discard(temporary: Entry) -> None:
    """Remove a prepared file that is not wanted any more."""
    with suppress(OSError):
        temporary.unlink()


def remove_leftovers(directory: Directory, gone: str = "") -> None:
    """Remove the temporary files in `directory` whose writers on this host were killed in the middle.

    A pid of another host is not judged: its file may be between the write and the rename. `gone` is another
    host on which nobody writes here any more.
    """
    if not Path("/proc/self").exists():  # no way to see which writers live
        return
    here = processes.host_tag()
    with suppress(OSError):
        for name in directory.names():
            parts = name.rsplit(".", 4)
            if not name.startswith(".") or len(parts) < 5 or parts[4] != "tmp" or not parts[2].isdecimal():
                continue
            writer = processes.stat_of(int(parts[2])) if parts[1] == here else None
            # A killed shim is a zombie until its starter collects it.
            if parts[1] in (here, processes.host_tag(gone)) and (writer is None or writer.is_dead):
                discard(directory.entry(name))


# -- Append-only JSON lines: whole lines in, whole lines out, whatever was cut off at the end.
#
# Reading cost depends on what is asked, not on the size of the file.


_BLOCK = 64 * 1024
LONGEST_LINE = 64 << 20
"""In bytes: no longer line is read. Far more than any that is written."""


@dataclass(frozen=True)
class LinePage:
    """Some whole lines of a file and the byte offset just behind them."""

    lines: list[str]
    cursor: int
    at_end: bool


def append_line(file: Entry, record: dict[str, Any]) -> int:
    """Append one record as one write, so that every line of the file stays whole; return its offset.

    A torn last line, left by a crash, is cut off first; a record lacking only its newline gets a newline.
    Only one process at a time may append to a file.

    Raises:
        OSError: the disk refused; the file is as it was.
    """
    line = json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n"
    return _append(file, line, cut_torn_line=True)


def append_bytes(file: Entry, data: bytes) -> None:
    """Append `data`, which ends a line, in one write; a torn last line first gets its newline.

    Raises:
        OSError: as `append_line`.
    """
    _append(file, data, cut_torn_line=False)


def _append(file: Entry, data: bytes, *, cut_torn_line: bool) -> int:
    """Append `data` and return the offset at which it begins."""
    with held_open(file.open(os.O_RDWR | os.O_CREAT | os.O_APPEND)) as descriptor:
        size, before = os.fstat(descriptor).st_size, b""
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            end = _last_newline(descriptor, size)
            if cut_torn_line and parse(os.pread(descriptor, LONGEST_LINE, end)) is None:
                os.ftruncate(descriptor, end)
                size = end
            else:
                before = b"\n"
        try:
            write_all(descriptor, before + data)
        except OSError:
            os.ftruncate(descriptor, size)
            raise
        return size + len(before)


def tail(file: Entry, count: int) -> LinePage:
    """Return the last `count` whole lines, or as many as lie in the last 64 MiB. A missing file has none."""
    try:
        with file.reader() as opened:
            end = _last_newline(opened.fileno(), os.fstat(opened.fileno()).st_size)
            lines = list(islice(_backwards(opened.fileno(), end, LONGEST_LINE), count))
    except FileNotFoundError:
        return LinePage([], 0, True)
    return LinePage([line.decode("utf-8", "replace") for line in reversed(lines)], end, True)


def torn_line(file: Entry) -> str:
    """Return the text behind the last whole line: a line still being written, or cut off by a crash."""
    try:
        with file.reader() as opened:
            opened.seek(_last_newline(opened.fileno(), os.fstat(opened.fileno()).st_size))
            return opened.read(LONGEST_LINE).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""


def read_from(file: Entry, cursor: int, count: int, *, max_bytes: int = 1 << 20) -> LinePage:
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
            at_end = position >= _last_newline(opened.fileno(), os.fstat(opened.fileno()).st_size)
    except FileNotFoundError:
        return LinePage([], 0, True)
    text = [line.decode("utf-8", "replace").rstrip("\n") for line in lines]
    return LinePage(text, position, at_end)


def records(file: Entry) -> Iterator[dict[str, Any]]:
    """Yield each whole record of a file, oldest first; a line that is not a JSON object is passed over."""
    return (record for _, record in placed_records(file))


def placed_records(file: Entry) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each record as `records` does, behind the offset at which `record_at` finds it."""
    position = 0
    try:
        with file.reader() as opened:
            for line in _lines(opened):
                record = parse(line)
                if record is not None:
                    yield position, record
                position += len(line)
    except FileNotFoundError:
        return


def record_at(file: Entry, offset: int) -> dict[str, Any] | None:
    """Return the record that begins at an offset, or None if there is none any more. Raises OSError."""
    with file.reader() as opened:
        opened.seek(offset)
        return parse(opened.readline(LONGEST_LINE))


def last_of(file: Entry, kind: str) -> dict[str, Any] | None:
    """Return the last record of `type` `kind`, however many of other types follow, within 32 MiB."""
    needle = f'"type":"{kind}"'.encode()
    try:
        with file.reader() as opened:
            end = _last_newline(opened.fileno(), os.fstat(opened.fileno()).st_size)
            for line in _backwards(opened.fileno(), end, 32 << 20):
                record = parse(line) if needle in line else None
                if record is not None and record.get("type") == kind:
                    return record
    except FileNotFoundError:
        pass
    return None


def parse(line: str | bytes) -> dict[str, Any] | None:
    """Return the object of a line, or None if there is none.

    The line is torn, nested deeper than any record, or has a `type` that no record has.
    """
    record = as_object(line)
    return record if record is not None and isinstance(record.get("type", ""), str) else None


def _lines(opened: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file, up to a line longer than any we write."""
    while (line := opened.readline(LONGEST_LINE)) and (line.endswith(b"\n") or len(line) < LONGEST_LINE):
        yield line


def _backwards(descriptor: int, end: int, most: int) -> Iterator[bytes]:
    """Yield the lines before `end`, where a line ends, the last first, as far as `most` bytes reach back."""
    position = end - 1  # before the newline of the last one
    pieces: list[bytes] = []  # of a line whose beginning was not read yet, its last piece first
    while position > 0 and end - position < most:
        start = max(0, position - _BLOCK)
        first, *others = os.pread(descriptor, position - start, start).split(b"\n")
        position = start
        if others:
            yield b"".join([others.pop(), *reversed(pieces)])
            yield from reversed(others)
            pieces = []
        pieces.append(first)
    if position == 0:
        yield b"".join(reversed(pieces))


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
