"""Files that are either the old or the new, whatever happens: temp, fsync, rename, fsync directory.

Standard library only: the shim imports this module.
"""

import os
import secrets
from contextlib import suppress
from pathlib import Path

from subagent_server.domain.errors import NotDurable, StorageFailed


def prepare(path: Path, data: bytes) -> Path:
    """Write `data` durably under a temporary name beside `path` and return that name.

    Raises:
        StorageFailed: the disk refused; nothing is left behind.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        _write(temporary, data)
    except OSError as error:
        discard(temporary)
        raise StorageFailed(path, error.strerror or str(error)) from error
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
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
