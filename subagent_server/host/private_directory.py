"""A directory that belongs to this user alone, opened once and then used by its descriptor.

Standard library only, and few of its modules: the front of a command imports this module.
"""

import os
import stat

_LONGEST_SECRET = 64


def open_private(path: str, *, make: bool = True) -> int:
    """Open a directory of this user alone, made together with its parent if missing; return its descriptor.

    Name its files by `/proc/self/fd/<descriptor>/...`: the directory cannot be swapped for another, and the
    name stays short enough for a socket.

    Raises:
        OSError: the directory cannot be made, is a link, is another user's, or is open to others.
    """
    if make and not os.path.lexists(path):
        around = os.path.dirname(path)  # noqa: PTH120
        for each in (around, path):
            if each and not os.path.lexists(each):
                try:
                    os.mkdir(each, 0o700)  # noqa: PTH102
                except FileExistsError:
                    continue  # another process has just made it: it is checked as any other
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    facts = os.fstat(descriptor)
    if facts.st_uid != os.getuid() or stat.S_IMODE(facts.st_mode) & 0o077:
        os.close(descriptor)
        raise PermissionError(f"{path} is not private: it belongs to another user, or others may enter it")
    return descriptor


def is_mine(path: str, others: int) -> bool:
    """Whether this is a directory of this user, without the rights of `others` (mode bits) for others."""
    try:
        facts = os.stat(path)  # noqa: PTH116
    except OSError:
        return False
    mine = stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid()
    return mine and not facts.st_mode & others


def write_secret(descriptor: int, name: str, secret: bytes) -> None:
    """Write a secret into the directory of a descriptor, for this user alone, over an older secret.

    Raises:
        OSError: the secret cannot be written.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, 0o600, dir_fd=descriptor), "wb") as file:
        file.write(secret)


def read_secret(descriptor: int, name: str) -> bytes:
    """Return a secret of the directory of a descriptor. Raises OSError: it cannot be read."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, dir_fd=descriptor), "rb") as file:
        return file.read(_LONGEST_SECRET)


def beneath(descriptor: int, name: str) -> str:
    """Return a name for a file in the directory of a descriptor, good in this process while it is open."""
    return f"/proc/self/fd/{descriptor}/{name}"
