"""Files that are either the old or the new, whatever happens: temp, fsync, rename, fsync directory.

Standard library only: the shim imports this module.
"""

import errno
import os
import secrets
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from subagent_server.domain.errors import NotDurable, StorageFailed
from subagent_server.host import processes
from subagent_server.host.directory import Directory, Entry

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def prepare(file: Entry, data: bytes | Iterable[bytes]) -> Entry:
    """Write `data`, or its pieces, durably under a temporary name beside `file` and return that name.

    Raises:
        StorageFailed: the disk refused; nothing is left behind.
    """
    temporary = file.directory.entry(f".{file.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    _make(temporary, data, file)
    return temporary


def commit(temporary: Entry, file: Entry) -> None:
    """Give a prepared file its name, durably.

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


def write_durably(file: Entry, data: bytes) -> None:
    """Replace the content of `file` with `data`, durably and at once for every reader.

    Raises:
        StorageFailed: the disk refused; the old content is whole, or (NotDurable) the new one.
    """
    commit(prepare(file, data), file)


def write_new(file: Entry, data: bytes) -> None:
    """Make a file with `data`, durably. Its name becomes durable with the next file made durably beside it.

    Raises:
        StorageFailed: the disk refused, and nothing is left behind; or the file exists.
    """
    _make(file, data, file)


def _make(made: Entry, data: bytes | Iterable[bytes], file: Entry) -> None:
    """Make a file, durably, which is or will be `file`; an existing file stays. Raises StorageFailed."""
    try:
        _write(made, data)
    except OSError as error:
        if not isinstance(error, FileExistsError):
            discard(made)
        raise StorageFailed(file.path, error.strerror or str(error)) from error


def reserve(spare: Entry, size: int) -> None:
    """Keep `size` bytes of the disk in the file `spare`, for `write_reserved`. A full disk keeps fewer."""
    with suppress(OSError):
        descriptor = spare.open(os.O_WRONLY | os.O_CREAT)
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(descriptor, 0, size)
            else:
                os.pwrite(descriptor, bytes(size), 0)
        finally:
            os.close(descriptor)


def write_reserved(file: Entry, spare: Entry, data: bytes) -> None:
    """Do as `write_durably`, and use up the room kept by `spare`: the disk may be full.

    Raises:
        StorageFailed: `spare` is too small, or the disk refused; the old content is whole.
    """
    try:
        descriptor = spare.open(os.O_WRONLY)
        try:
            if os.fstat(descriptor).st_size < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            _write_all(descriptor, data)
            os.ftruncate(descriptor, len(data))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StorageFailed(file.path, error.strerror or str(error)) from error
    commit(spare, file)


def is_full(error: StorageFailed) -> bool:
    """Whether a write failed for want of room, and for nothing else; what has its name was written."""
    cause = error.__cause__
    return not isinstance(error, NotDurable) and isinstance(cause, OSError) and cause.errno in _NO_ROOM


def discard(temporary: Entry) -> None:
    """Remove a prepared file that is not wanted any more."""
    with suppress(OSError):
        temporary.unlink()


def remove_leftovers(directory: Directory) -> None:
    """Remove the temporary files in `directory` whose writers on this host were killed in the middle."""
    if not Path("/proc/self").exists():  # nobody can say who lives
        return
    with suppress(OSError):
        for name in directory.names():
            parts = name.split(".")
            if len(parts) < 5 or parts[0] or parts[-1] != "tmp" or not parts[-3].isdecimal():
                continue
            writer = processes.stat_of(int(parts[-3]))
            if writer is None or writer.is_dead:  # a killed shim is a zombie until its starter collects it
                discard(directory.entry(name))


def _write(file: Entry, data: bytes | Iterable[bytes]) -> None:
    descriptor = file.open(os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        for piece in [data] if isinstance(data, bytes) else data:
            _write_all(descriptor, piece)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
