"""Placeholders: they hold missing names in a user's directory, because a mount needs a place to lie on.

A placeholder is an empty directory, which git does not show, of a mode that nobody else gives to one. So
anybody can tell one that a killed process left, and `rmdir` can remove nothing of the user's. One placeholder
is a file: `commondir` in a repository, whose whole content is `.`, which means nothing to git. In a directory
that is not a repository, `commondir` is a directory: git then refuses to take the directory around it for a
repository.

Removing a placeholder drops the mounts that lie on it, in every sandbox. So each user of a placeholder keeps
a shared lock on it, which ends with the process, and only a process that gets an exclusive lock removes it.
"""

import fcntl
import os
import select
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from subagent_server.host.inside import open_real

COMMONDIR = "commondir"
_SAYS_NOTHING = b"."
_PLANTED = ("HEAD", "objects", "refs")
"""Names that make their directory a repository for git, with the `config` in it."""
_MODE = 0o1500
_PATIENCE_SECONDS = 1.0
"""In all, for processes that just remove one; not for a program of a sandbox that keeps locks on them."""
_PAUSE_SECONDS = 0.01
_OPENING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class NotHeld(OSError):
    """A name could not be held: `strerror` says why."""


@dataclass
class Placeholders:
    """The placeholders that this process uses."""

    _held: list[tuple[Path, int]] = field(default_factory=list)
    _patience: float = _PATIENCE_SECONDS

    def hold(self, path: Path, *, in_repository: bool = False) -> None:
        """Make the missing `path` a placeholder, or use the one that is there.

        `in_repository` says that git takes the directory of `path` for a repository.

        Raises:
            NotHeld: something else has come there, or the file system cannot have placeholders.
            OSError: the system refused.
        """
        directory = open_real(path.parent)
        try:
            while (descriptor := _locked(directory, path, in_repository)) is None:
                if self._patience <= 0:
                    raise NotHeld(None, "another program keeps a lock on it", str(path))
                select.select((), (), (), _PAUSE_SECONDS)
                self._patience -= _PAUSE_SECONDS
        finally:
            os.close(directory)
        self._held.append((path, descriptor))

    def release(self) -> None:
        """Remove the placeholders that no other process uses."""
        while self._held:
            path, descriptor = self._held.pop()
            os.close(descriptor)
            remove_if_unused(path)


def remove_if_unused(path: Path) -> None:
    """Remove the placeholder at `path` that no process uses; whatever else is there stays."""
    with suppress(OSError):
        directory = open_real(path.parent)
        try:
            descriptor = _opened(directory, path.name)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_at(descriptor, directory, path.name) and not _is_guard(directory, path.name):
                    _remove(directory, path.name)
            finally:
                os.close(descriptor)
        finally:
            os.close(directory)


def is_placeholder(directory: int, name: str) -> bool:
    """Whether the entry of an open directory is one."""
    with suppress(OSError):
        os.close(_opened(directory, name))
        return True
    return False


def _locked(directory: int, path: Path, in_repository: bool) -> int | None:
    """Return the placeholder, open and with a shared lock; None if it has to be tried again."""
    _make(directory, path, in_repository)
    try:
        descriptor = _opened(directory, path.name)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if _is_at(descriptor, directory, path.name):
            return descriptor
    except BlockingIOError:
        pass
    os.close(descriptor)
    return None


def _make(directory: int, path: Path, in_repository: bool) -> None:
    """Make the placeholder, at once as it has to be: a reader never finds it half made."""
    try:
        if in_repository and path.name == COMMONDIR:
            _make_commondir(directory)
        else:
            os.mkdir(path.name, _MODE, dir_fd=directory)
    except FileExistsError:
        return
    if not is_placeholder(directory, path.name):
        _remove(directory, path.name)
        raise NotHeld(None, "this file system does not keep the mode of a directory", str(path))


def _make_commondir(directory: int) -> None:
    """Make the file whole before it gets its name: git fails on an empty `commondir`."""
    flags = os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC
    with os.fdopen(os.open(".", flags, 0o600, dir_fd=directory), "wb") as file:
        file.write(_SAYS_NOTHING)
        file.flush()
        os.link(f"/proc/self/fd/{file.fileno()}", COMMONDIR, dst_dir_fd=directory)


def _opened(directory: int, name: str) -> int:
    """Return the open placeholder. Raises NotHeld if it is something else, OSError."""
    try:
        descriptor = os.open(name, _OPENING, dir_fd=directory)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise NotHeld(None, "something else has come there", name) from error
    try:
        if _is_ours(descriptor, name):
            return descriptor
    except OSError:
        os.close(descriptor)
        raise
    os.close(descriptor)
    raise NotHeld(None, "something else has come there", name)


def _is_ours(descriptor: int, name: str) -> bool:
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid():
        return False
    if stat.S_ISREG(status.st_mode):
        return name == COMMONDIR and os.pread(descriptor, 2, 0) == _SAYS_NOTHING
    is_marked = stat.S_ISDIR(status.st_mode) and status.st_mode & 0o1777 == _MODE
    return is_marked and not os.listdir(descriptor)


def _is_at(descriptor: int, directory: int, name: str) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), os.stat(name, dir_fd=directory, follow_symlinks=False))
    return False


def _is_guard(directory: int, name: str) -> bool:
    """Whether only this placeholder keeps git from a repository that was planted around it: then it stays."""
    is_directory = name == COMMONDIR and not _is_file(directory, name)
    return is_directory and all(_is_there(directory, planted) for planted in _PLANTED)


def _remove(directory: int, name: str) -> None:
    if _is_file(directory, name):
        os.unlink(name, dir_fd=directory)
    else:
        os.rmdir(name, dir_fd=directory)


def _is_there(directory: int, name: str) -> bool:
    with suppress(FileNotFoundError):
        os.stat(name, dir_fd=directory, follow_symlinks=False)
        return True
    return False


def _is_file(directory: int, name: str) -> bool:
    return stat.S_ISREG(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
