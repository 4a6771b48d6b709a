"""A directory that is this user's alone, looked at through a descriptor. Standard library only."""

import os
import stat
from contextlib import suppress
from pathlib import Path


def open_private(path: Path, *, make: bool = True) -> int:
    """Find a directory of this user alone, or make it, and return its descriptor.

    Name files in it by `/proc/self/fd/<descriptor>/...`: nobody can put another directory in its place, and
    the name stays short enough for a socket.

    Raises:
        OSError: it cannot be made, it is a link, it is another user's, or others may enter it.
    """
    if make:
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    facts = os.fstat(descriptor)
    if facts.st_uid != os.getuid() or stat.S_IMODE(facts.st_mode) & 0o077:
        os.close(descriptor)
        raise PermissionError(f"{path} is not private: it belongs to another user, or others may enter it")
    return descriptor


def beneath(descriptor: int, name: str) -> str:
    """Return a name for a file in the directory of a descriptor, good in this process while that is open."""
    return f"/proc/self/fd/{descriptor}/{name}"
