"""The owner of a runs root. A root that came with a repository, an archive or another user is not ours.

A root of our making carries a mark that none of these can bring along: an extended attribute with the
directory's own inode, or, if the file system has no such attributes, a file `.root` with the inode. Our root
belongs to us, and no other user can write there. Any other root is foreign: a foreign root can be read, as a
CI job reads a given root, but nothing inside is changed (SPEC section 13). Standard library only: the shim
imports this module.
"""

import errno
import os
import secrets
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from subagent_server.domain.errors import ForeignRoot, StorageFailed, UnsafeRoot
from subagent_server.host.directory import DIRECTORY_MODE, Directory

ATTRIBUTE = "user.subagent.root"
MARK_FILE = ".root"
CHANGES = ".changes"
"""A file in it for each run that may be live, touched at each of its changes."""
RUNS, HIDDEN_RUNS = Path("runs"), Path(".subagent", "runs")
_EMPTY_ENOUGH = frozenset({"README.md", ".gitignore", MARK_FILE})
"""Names that a directory may hold and still become a root."""
_NO_ATTRIBUTES = (errno.ENOTSUP, errno.ENOSYS)
_LONGEST_MARK = 200
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_IGNORE_EVERYTHING = "# Run directories are records of this machine, not part of the project.\n*\n"


class RootDirectory(Directory):
    """A runs root. After opening, `forbidden` says why changes are forbidden: None if ours by proof."""

    forbidden: ForeignRoot | None

    def _open(self) -> int:
        descriptor = super()._open()
        try:
            status = os.fstat(descriptor)
            self.owners = frozenset({os.geteuid(), status.st_uid})
            self.forbidden = self._why_foreign(descriptor, status)
        except BaseException:
            os.close(descriptor)
            raise
        if self.forbidden is None:
            self.owners = frozenset({os.geteuid()})
        return descriptor

    def _why_foreign(self, descriptor: int, status: os.stat_result) -> ForeignRoot | None:
        if status.st_uid != os.geteuid():
            return UnsafeRoot(self.path, f"belongs to another user ({status.st_uid})")
        if not _has_mark(descriptor, status.st_ino):
            return ForeignRoot(self.path, "is not marked as one that was made here")
        if status.st_mode & _OTHERS_WRITE and _is_open_to_others(descriptor):
            return UnsafeRoot(self.path, "can be written by others")
        return None

    def claim(self) -> None:
        """Mark this existing directory as a runs root of this user, if it may be one.

        Raises:
            ForeignRoot: the directory holds foreign files, or others can write to the directory.
            OSError: the mark cannot be written.
        """
        descriptor = self.descriptor
        if self.forbidden is None:
            return
        if isinstance(self.forbidden, UnsafeRoot) or not set(self.names()) <= _EMPTY_ENOUGH:
            # Between the two looks somebody else may have marked it and begun to fill it.
            self.forbidden = self._why_foreign(descriptor, os.fstat(descriptor))
            if self.forbidden is not None:
                raise self.forbidden
            return
        self.adopt()

    def adopt(self) -> None:
        """Mark this directory as ours, with any content, and close the directory to others.

        Raises:
            UnsafeRoot: the directory belongs to another user, or others can still write to the directory.
            OSError: the mark cannot be written.
        """
        descriptor = self.descriptor
        if isinstance(self.forbidden, UnsafeRoot):
            raise self.forbidden
        if _is_open_to_others(descriptor):
            raise UnsafeRoot(self.path, "can be written by others")
        _mark(descriptor)
        self.forbidden = self._why_foreign(descriptor, os.fstat(descriptor))
        self.owners = frozenset({os.geteuid()})

    def keep_out_of_repositories(self) -> None:
        """Put a `.gitignore` into it, if there is none. Raises OSError."""
        with suppress(FileExistsError):
            descriptor = self.open(".gitignore", _NEW)
            try:
                os.write(descriptor, _IGNORE_EVERYTHING.encode())
            finally:
                os.close(descriptor)


def make_root(path: Path) -> RootDirectory:
    """Return the root at `path`, made if missing, and marked if empty.

    Raises:
        ForeignRoot: the root is not ours.
        StorageFailed: the root cannot be made or marked.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            path.mkdir(DIRECTORY_MODE)
        root = RootDirectory(path)
        root.claim()
    except OSError as error:
        raise StorageFailed(path, error.strerror or str(error)) from error
    return root


def may_become_root(path: Path) -> bool:
    """Whether `path` is free, or is a directory of this user, empty or with only a README."""
    try:
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            return False
        return set(os.listdir(path)) <= _EMPTY_ENOUGH  # noqa: PTH208
    except FileNotFoundError:
        return True
    except OSError:
        return False


def is_ours(path: Path) -> bool:
    """Whether the root at `path` is ours by proof; an unreadable root is not."""
    root = RootDirectory(path)
    with suppress(OSError):
        return root.exists() and root.forbidden is None
    return False


def is_marked(path: Path) -> bool:
    """Whether the directory at `path` carries the mark of a root, of whichever user."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            return _has_mark(descriptor, os.fstat(descriptor).st_ino)
        finally:
            os.close(descriptor)
    return False


@dataclass(frozen=True)
class FoundRoot:
    """The root to use by default. `passed_over` is a `runs/` that a person may have meant."""

    path: Path
    passed_over: Path | None = None


def find_root(cwd: Path) -> FoundRoot:
    """Return the nearest root upwards that is ours by proof, as git looks for its folder.

    Without such a root: `runs` in `cwd`, if this can become a root, else `.subagent/runs` there.
    """
    passed_over: Path | None = None
    for directory in (cwd, *cwd.parents):
        for place in (RUNS, HIDDEN_RUNS):
            if is_ours(directory / place):
                return FoundRoot(directory / place, passed_over)
        if passed_over is None and (directory / RUNS / CHANGES).is_dir():  # of an earlier version, or planted
            passed_over = directory / RUNS
    # looked at once more: somebody may have made it meanwhile, and begun to fill it
    if may_become_root(cwd / RUNS) or is_ours(cwd / RUNS):
        return FoundRoot(cwd / RUNS, passed_over)
    return FoundRoot(cwd / HIDDEN_RUNS, passed_over or cwd / RUNS)


def _has_mark(descriptor: int, inode: int) -> bool:
    try:
        mark = os.getxattr(descriptor, ATTRIBUTE)
    except OSError as error:
        if error.errno == errno.ENODATA:
            return False
        if error.errno not in _NO_ATTRIBUTES:
            raise  # a disk that does not answer says nothing of whose it is
        mark = _mark_in_file(descriptor)
    return mark.split()[1:] == [str(inode).encode()]


def _mark_in_file(descriptor: int) -> bytes:
    try:
        file = os.open(
            MARK_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=descriptor
        )
    except OSError:
        return b""
    try:
        return os.read(file, _LONGEST_MARK)
    except OSError:
        return b""
    finally:
        os.close(file)


def _mark(descriptor: int) -> None:
    """Mark a directory by its inode, which some file systems give anew at the first change: so, twice."""
    name = secrets.token_hex(8)
    try:
        for _ in range(2):
            os.setxattr(descriptor, ATTRIBUTE, f"{name} {os.fstat(descriptor).st_ino}".encode())
    except OSError as error:
        if error.errno not in _NO_ATTRIBUTES:
            raise
        with suppress(FileNotFoundError):
            os.unlink(MARK_FILE, dir_fd=descriptor)
        file = os.open(MARK_FILE, _NEW | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=descriptor)
        try:
            os.write(file, f"{name} {os.fstat(descriptor).st_ino}\n".encode())
        finally:
            os.close(file)


def _is_open_to_others(descriptor: int) -> bool:
    """Whether others can write to a directory after we have closed it to them: some systems keep no modes."""
    with suppress(OSError):
        os.fchmod(descriptor, DIRECTORY_MODE)
    return bool(os.fstat(descriptor).st_mode & _OTHERS_WRITE)
