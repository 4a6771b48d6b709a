"""Reaching files below an open directory: by descriptor, never through a link, never blocking.

A path is resolved anew at each use, so a link in the path decides which file is read or written. Here a
directory is opened once; its names are opened below its descriptor (openat(2)) without following links. Each
opened file is checked before the caller gets the descriptor: kind, owner, and number of names. Standard
library only: the shim imports this module.
"""

import errno
import os
import select
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from threading import Lock
from typing import BinaryIO, TypeVar

T = TypeVar("T")


@contextmanager
def held_open(descriptor: int) -> Iterator[int]:
    """Yield an open descriptor, and close it at the end."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write to a descriptor until all is written. Raises OSError."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def can_be_read(descriptor: int, seconds: float = 0.0) -> bool:
    """Wait at most so long, and return whether a descriptor can be read: a pidfd if its process has ended."""
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(seconds * 1_000))


def in_memory(content: bytes) -> int:
    """Return a descriptor of a file without a name, at the beginning of its `content`. Raises OSError."""
    descriptor = os.memfd_create("content")
    try:
        write_all(descriptor, content)
        os.lseek(descriptor, 0, os.SEEK_SET)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


FILE_MODE, DIRECTORY_MODE = 0o600, 0o700
"""Modes of what is made here. No usual umask removes a bit of them."""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_KINDS = {
    stat.S_IFREG: "a file",
    stat.S_IFDIR: "a directory",
    stat.S_IFLNK: "a link",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}
_OPENING = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def is_directory(path: Path) -> bool:
    """Whether a path leads to a directory.

    Raises:
        OSError: it cannot be found out (`Path.is_dir` returns False then, from Python 3.14 on).
    """
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def kind_of(mode: int) -> str:
    """Return the name for a kind of file, with its article."""
    return _KINDS.get(stat.S_IFMT(mode), "odd")


class NotPlain(OSError):
    """The file of that name is of another kind than in a run: `strerror` names its kind."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(errno.EINVAL, why, str(path))


def read_plain(
    path: Path, most: int, flags: int = 0, *, check: Callable[[int], None] = lambda _: None
) -> tuple[bytes, os.stat_result]:
    """Return content and status of a regular file, at a path where anything may be: a FIFO, a device.

    `check` is called with the open descriptor, and may raise.

    Raises:
        NotPlain: it is of another kind, or has more than `most` bytes.
        OSError: it cannot be read; BlockingIOError: it is a file of the kernel that has nothing now.
    """
    check_regular(path, path.stat(follow_symlinks=not flags & os.O_NOFOLLOW))  # opening can do things
    with held_open(
        os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY | flags)
    ) as descriptor:
        check(descriptor)
        return read_opened(descriptor, path, most)


def read_opened(descriptor: int, path: Path, most: int) -> tuple[bytes, os.stat_result]:
    """Return content and status of what was opened at a path, as `read_plain` does. Raises as it does."""
    check_regular(path, status := os.fstat(descriptor))
    size, data = status.st_size, b""
    while size <= most and (part := os.read(descriptor, max(size - len(data), 4_096) + 1)):
        data += part
        size = max(size, len(data))
    if size > most:
        limit = f"{most >> 20} MiB" if most >> 20 else f"{most >> 10} KiB"
        raise NotPlain(path, f"it is larger than {limit}, so make it smaller")
    return data, status


def check_regular(path: Path, status: os.stat_result) -> None:
    """Refuse what is no regular file. Raises IsADirectoryError, NotPlain."""
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise NotPlain(path, "it is not a regular file")


class _Descriptor:
    """An open descriptor, closed with its last user in the process of its opening."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._process = os.getpid()

    def __del__(self) -> None:
        if os.getpid() == self._process:  # a fork may have closed it, and opened another of that number
            with suppress(OSError):
                os.close(self.number)


class Directory:
    """A directory, opened at its first use; later changes of its path have no effect.

    `where` is its path, or its name in `parent`, below which the directory is then opened. `owners` and
    `forbidden` are known after opening, and are the parent's if there is a parent.
    """

    def __init__(self, where: Path | str, parent: "Directory | None" = None) -> None:
        self._where: tuple[Path | str, ...] = (where,) if parent is None else (*parent._where, where)
        self.owners: frozenset[int] | None = None
        """Who may own what is opened here; None for anybody."""
        self.forbidden: Exception | None = None
        """Raised instead of a change; None if changes are allowed."""
        self._parent = parent
        self._opened: _Descriptor | None = None
        self._first_use = Lock()  # of two threads, the later one would close what the earlier uses

    @property
    def path(self) -> Path:
        """The path of the directory, for messages and for people; never open this path."""
        return Path(*self._where)

    @property
    def descriptor(self) -> int:
        """The open directory.

        Raises:
            OSError: the directory is missing, or (NotPlain) is not a directory of an accepted owner.
        """
        if self._opened is None:
            with self._first_use:
                if self._opened is None:
                    self._opened = _Descriptor(self._open())
        return self._opened.number

    def _open(self) -> int:
        if self._parent is None:
            return os.open(self._where[0], os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        descriptor = self._parent.open(str(self._where[-1]), kind=stat.S_IFDIR)
        self.owners, self.forbidden = self._parent.owners, self._parent.forbidden
        self._parent = None  # not needed any more, and it may be open
        return descriptor

    def writable(self) -> int:
        """Return the open directory, for a change in it. Raises OSError, ForeignRoot."""
        descriptor = self.descriptor
        if self.forbidden is not None:
            raise self.forbidden
        return descriptor

    def entry(self, name: str) -> "Entry":
        """Return a name in this directory; there may be nothing of that name."""
        return Entry(self, name)

    def below(self, name: str) -> "Directory":
        """Return a subdirectory, which may be missing."""
        return Directory(name, self)

    def open(self, name: str, flags: int = os.O_RDONLY, kind: int = stat.S_IFREG) -> int:
        """Open a name in this directory and return the descriptor. A new file has mode 0600.

        Raises:
            FileNotFoundError: the name does not exist, and `flags` do not ask to make a file.
            NotPlain: the name is a link, of another kind or owner, or a file with several names.
            OSError: the system refuses.
        """
        directory = self.writable() if flags & WRITING else self.descriptor
        try:
            descriptor = self._looked_up(
                name, lambda: os.open(name, flags | _OPENING, FILE_MODE, dir_fd=directory)
            )
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO):
                self._check(name, os.stat(name, dir_fd=directory, follow_symlinks=False), kind)
            raise
        try:
            self._check(name, os.fstat(descriptor), kind)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    def stat(self, name: str) -> os.stat_result:
        """Return the status of a name; of a link itself, not of its target. Raises OSError."""
        directory = self.descriptor
        return self._looked_up(name, lambda: os.stat(name, dir_fd=directory, follow_symlinks=False))

    def _looked_up(self, name: str, look: Callable[[], T]) -> T:
        """Look for a name, and once more if it is missing: NFS remembers for 30 s that it was.

        To open the directory asks the server again (measured: 0.1 to 0.25 s).
        """
        try:
            try:
                return look()
            except FileNotFoundError:
                os.close(os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.descriptor))
                return look()
        except OSError as error:
            error.filename = str(self.path / name)  # the system call got the name alone
            raise

    def _check(self, name: str, found: os.stat_result, kind: int) -> None:
        if kind == stat.S_IFDIR and stat.S_ISREG(found.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(self.path / name))
        if stat.S_IFMT(found.st_mode) != kind:
            raise NotPlain(self.path / name, f"it is {kind_of(found.st_mode)}")
        if self.owners is not None and found.st_uid not in self.owners:
            raise NotPlain(self.path / name, f"it belongs to another user ({found.st_uid})")
        if kind != stat.S_IFDIR and found.st_nlink > 1:
            raise NotPlain(self.path / name, f"it has {found.st_nlink} names (hard links)")

    def names(self) -> list[str]:
        """Return the names in this directory, in no order. Raises OSError."""
        directory, flags = self.descriptor, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC

        def listed() -> list[str]:
            with held_open(os.open(".", flags, dir_fd=directory)) as descriptor:
                return os.listdir(descriptor)  # noqa: PTH208 - its own descriptor has its own position

        return self._looked_up(".", listed)

    def files_below(self, depth: int) -> Iterator["Entry"]:
        """Yield the files in this directory and `depth` levels below, and whatever else is among them."""
        names: list[str] = []
        with suppress(OSError):
            names = sorted(self.names())
        for name in names:
            entry, is_directory = self.entry(name), False
            with suppress(OSError):  # a reader of the entry finds out what it is instead
                is_directory = stat.S_ISDIR(entry.stat().st_mode)
            if not is_directory:
                yield entry
            elif depth > 0:
                yield from self.below(name).files_below(depth - 1)

    def exists(self) -> bool:
        """Whether the directory exists, and is a directory. Raises OSError if this cannot be found out."""
        with suppress(FileNotFoundError, NotADirectoryError, NotPlain):
            return self.descriptor >= 0
        return False

    def make(self) -> None:
        """Make this directory, with mode 0700, if it is missing. Raises OSError."""
        with suppress(FileExistsError):
            if self._opened is None:
                self.make_new()

    def make_new(self) -> None:
        """Make this directory, which is not open yet, with mode 0700. Raises OSError, also if it is there."""
        if self._parent is None:
            self.path.mkdir(DIRECTORY_MODE)
        else:
            os.mkdir(self._where[-1], DIRECTORY_MODE, dir_fd=self._parent.writable())

    def sync(self) -> None:
        """Make the names in this directory durable. Raises OSError."""
        os.fsync(self.descriptor)


@dataclass(frozen=True, slots=True)
class Entry:
    """A name in a directory: a file, or nothing yet."""

    directory: Directory
    name: str

    @classmethod
    def at(cls, path: Path) -> "Entry":
        """Return the file at a path that is trusted up to its directory."""
        return cls(Directory(path.parent), path.name)

    @property
    def path(self) -> Path:
        """The path of the entry, for messages; never open this path."""
        return self.directory.path / self.name

    def __str__(self) -> str:
        return str(self.path)

    def open(self, flags: int = os.O_RDONLY, kind: int = stat.S_IFREG) -> int:
        """Open it and return the descriptor. Raises as `Directory.open` does."""
        return self.directory.open(self.name, flags, kind)

    @contextmanager
    def reader(self) -> Iterator[BinaryIO]:
        """Yield it open for reading. Raises as `Directory.open` does."""
        with os.fdopen(self.open(), "rb") as file:
            yield file

    @contextmanager
    def appender(self) -> Iterator[BinaryIO]:
        """Open the file for appending, and make it if missing. Raises as `Directory.open` does."""
        with os.fdopen(self.open(os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab") as file:
            yield file

    def read(self, limit: int) -> bytes:
        """Return its content. Raises as `Directory.open` does, NotPlain if it has more than `limit` bytes."""
        with held_open(self.open()) as descriptor:
            return read_opened(descriptor, self.path, limit)[0]

    def write(self, data: bytes) -> None:
        """Write `data` over its content, if it must not last. Raises as `Directory.open` does."""
        with os.fdopen(self.open(os.O_WRONLY | os.O_CREAT), "wb") as file:
            file.truncate(0)
            file.write(data)

    def sync(self) -> None:
        """Make its content durable. What cannot be opened is missing, or not a file, and is left alone.

        Raises:
            OSError: the disk does not confirm.
        """
        try:
            descriptor = self.open()
        except OSError:
            return
        with held_open(descriptor):
            os.fsync(descriptor)

    def stat(self) -> os.stat_result:
        """Return its status; of a link itself, not of its target. Raises OSError."""
        return self.directory.stat(self.name)

    def exists(self) -> bool:
        """Whether there is an entry of this name, of any kind. Raises OSError if this cannot be found out."""
        with suppress(FileNotFoundError, NotADirectoryError, NotPlain):
            return bool(self.stat())
        return False

    def touch(self) -> None:
        """Make it, empty, or set its times to now. Raises OSError."""
        with held_open(self.open(os.O_WRONLY | os.O_CREAT)) as descriptor:
            os.utime(descriptor)

    def make_fifo(self) -> None:
        """Make it a FIFO. Raises OSError."""
        os.mkfifo(self.name, FILE_MODE, dir_fd=self.directory.writable())

    def unlink(self) -> None:
        """Remove the name, if it is there. Raises OSError."""
        directory = self.directory.writable()
        with suppress(FileNotFoundError):
            os.unlink(self.name, dir_fd=directory)

    def rename(self, to: "Entry") -> None:
        """Rename the entry, and replace any entry of the new name. Raises OSError."""
        here, there = self.directory.writable(), to.directory.writable()
        os.rename(self.name, to.name, src_dir_fd=here, dst_dir_fd=there)


# -- A directory that belongs to this user alone.


class PrivateDirectory(Directory):
    """A directory of this user alone; with `make` it is made, together with its parent, if missing.

    Opening it raises OSError if it cannot be made, is a link, is another user's, or is open to others.
    """

    def __init__(self, path: Path, *, make: bool = True) -> None:
        super().__init__(path)
        self._make = make

    def _open(self) -> int:
        path = str(self.path)
        for each in (os.path.dirname(path), path) if self._make else ():  # noqa: PTH120
            if each and not os.path.lexists(each):
                with suppress(FileExistsError):  # another has just made it: it is checked as any
                    os.mkdir(each, DIRECTORY_MODE)  # noqa: PTH102
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        facts = os.fstat(descriptor)
        if facts.st_uid != os.getuid() or stat.S_IMODE(facts.st_mode) & 0o077:
            os.close(descriptor)
            raise PermissionError(
                f"{path} is not private: it belongs to another user, or others may enter it"
            )
        self.owners = frozenset({os.getuid()})
        return descriptor

    def address(self, name: str) -> str:
        """Return a path to a name in it, short enough for a socket, good in this process while it is open."""
        return f"/proc/self/fd/{self.descriptor}/{name}"


def is_mine(path: str, others: int) -> bool:
    """Whether this is a directory of this user, without the rights of `others` (mode bits) for others."""
    try:
        facts = os.stat(path)  # noqa: PTH116
    except OSError:
        return False
    mine = stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid()
    return mine and not facts.st_mode & others


# -- Deleting a directory with all its contents, but nothing behind its links.


def remove_tree(entry: Entry) -> None:
    """Delete a directory, even if read-only; an entry that refuses stays. A link itself is removed.

    Raises:
        OSError: the parent directory is missing. If changes there are forbidden, the reason is raised, too.
    """
    remove_below(entry.directory.writable(), entry.name)


def remove_below(directory: int, name: str) -> None:
    """Delete a name in an open directory, as `remove_tree` does."""
    with suppress(OSError):
        try:
            os.unlink(name, dir_fd=directory)
        except IsADirectoryError:
            with held_open(opened_writable(directory, name)) as top:
                _empty(top)
            os.rmdir(name, dir_fd=directory)


def _empty(top: int) -> None:
    """Remove what is in an open directory.

    What a run has written may lie deeper than a program can recurse, or hold directories open. So each
    directory is moved to the top before it is looked into.
    """
    names = (f"{os.urandom(8).hex()}-{number}" for number in count())
    waiting: list[str] = []

    def clear(directory: int) -> None:
        for name in os.listdir(directory):
            with suppress(OSError):
                try:
                    os.unlink(name, dir_fd=directory)
                except IsADirectoryError:
                    os.close(opened_writable(directory, name))  # to be moved, it has to be writable itself
                    moved = next(names)
                    os.rename(name, moved, src_dir_fd=directory, dst_dir_fd=top)
                    waiting.append(moved)

    clear(top)
    while waiting:
        name = waiting.pop()
        with suppress(OSError):
            with held_open(opened_writable(top, name)) as directory:
                clear(directory)
            os.rmdir(name, dir_fd=top)


def opened_writable(directory: int, name: str) -> int:
    """Open a directory that may be read-only, through no link. Raises OSError."""
    flags = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    with held_open(os.open(name, flags | os.O_PATH, dir_fd=directory)) as held:
        with suppress(OSError):
            Path(f"/proc/self/fd/{held}").chmod(0o700)
        return os.open(".", flags, dir_fd=held)
