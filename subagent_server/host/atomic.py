"""Files that are either the old or the new, whatever happens: temp, fsync, rename, fsync directory.

Standard library only: the shim imports this module.
"""

import errno
import os
import secrets
from contextlib import suppress
from pathlib import Path

from subagent_server.domain.errors import NotDurable, StorageFailed

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def prepare(path: Path, data: bytes) -> Path:
    """Write `data` durably under a temporary name beside `path` and return that name.

    Raises:
        StorageFailed: the disk refused; nothing is left behind.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    _make(temporary, data, path)
    return temporary


def commit(temporary: Path, path: Path) -> None:
    """Give a prepared file its name, durably.

    Raises:
        StorageFailed: the rename failed; the old content is whole.
        NotDurable: it has its name, and the disk does not say that this outlives a power cut.
    """
    try:
        temporary.replace(path)
    except OSError as error:
        discard(temporary)
        raise StorageFailed(path, error.strerror or str(error)) from error
    try:
        sync_directory(path.parent)
    except OSError as error:
        raise NotDurable(path, error.strerror or str(error)) from error


def write_durably(path: Path, data: bytes) -> None:
    """Replace the content of `path` with `data`, durably and at once for every reader.

    Raises:
        StorageFailed: the disk refused; the old content is whole, or (NotDurable) the new one.
    """
    commit(prepare(path, data), path)


def write_new(path: Path, data: bytes) -> None:
    """Make a file with `data`, durably. Its name is durable with the next that is made so beside it.

    Raises:
        StorageFailed: the disk refused; nothing is left behind, or there is such a file.
    """
    _make(path, data, path)


def _make(file: Path, data: bytes, path: Path) -> None:
    """Make a file, durably, which is or will be `path`; one that is there stays. Raises StorageFailed."""
    try:
        _write(file, data)
    except OSError as error:
        if not isinstance(error, FileExistsError):
            discard(file)
        raise StorageFailed(path, error.strerror or str(error)) from error


def reserve(spare: Path, size: int) -> None:
    """Keep `size` bytes of the disk in the file `spare`, for `write_reserved`. A full disk keeps fewer."""
    with suppress(OSError):
        descriptor = os.open(spare, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(descriptor, 0, size)
            else:
                os.pwrite(descriptor, bytes(size), 0)
        finally:
            os.close(descriptor)


def write_reserved(path: Path, spare: Path, data: bytes) -> None:
    """Do as `write_durably`, in the room that `spare` keeps, which is used up by it: the disk may be full.

    Raises:
        StorageFailed: it is too small, or the disk refused; the old content is whole.
    """
    try:
        descriptor = os.open(spare, os.O_WRONLY | os.O_CLOEXEC)
        try:
            if os.fstat(descriptor).st_size < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            _write_all(descriptor, data)
            os.ftruncate(descriptor, len(data))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StorageFailed(path, error.strerror or str(error)) from error
    commit(spare, path)


def is_full(error: StorageFailed) -> bool:
    """Whether a write failed for want of room, and for nothing else; what has its name was written."""
    cause = error.__cause__
    return not isinstance(error, NotDurable) and isinstance(cause, OSError) and cause.errno in _NO_ROOM


def discard(temporary: Path) -> None:
    """Remove a prepared file that is not wanted any more."""
    with suppress(OSError):
        temporary.unlink(missing_ok=True)


def remove_leftovers(directory: Path) -> None:
    """Remove the temporary files in `directory` whose writers on this host were killed in the middle."""
    if not Path("/proc/self").exists():  # nobody can say who lives
        return
    for path in directory.glob(".*.tmp"):
        writer = path.name.split(".")[-3]
        if writer.isdecimal() and not Path("/proc", writer).exists():
            discard(path)


def sync_directory(directory: Path) -> None:
    """Make the names in `directory` durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        _write_all(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
