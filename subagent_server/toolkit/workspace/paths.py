"""Staying inside: from a path that a model wrote to an open directory and a name in it.

A path is walked component by component on open directories (openat(2) with O_NOFOLLOW), and symbolic links
are followed by hand, so nothing that is swapped meanwhile can lead out of the root. A link may point to any
place inside the root.
"""

import errno
import os
import stat
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from subagent_server.domain.errors import BadArgument, shorten

_MOST_LINKS = 40
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class Place:
    """A name (`.`: the directory itself) in an open directory; never a symbolic link when it was found."""

    directory: int
    name: str
    parts: tuple[str, ...]

    @property
    def shown(self) -> str:
        """The path relative to the root, for people and models."""
        return printable("/".join(self.parts)) or "."

    def status(self) -> os.stat_result | None:
        """Return what is there, without following a link; None where nothing is."""
        try:
            return os.stat(self.name, dir_fd=self.directory, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def open(self, flags: int, mode: int = 0o666) -> int:
        """Open it: never through a link, never waiting for the other end of a FIFO."""
        safe = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        return os.open(self.name, flags | safe, mode, dir_fd=self.directory)

    def open_directory(self) -> int:
        """Open it as a directory that can be listed."""
        return self.open(os.O_RDONLY | os.O_DIRECTORY)


@dataclass(frozen=True)
class Workspace:
    """The directory a run works in. What lies in a `read_only` root can be read and not written."""

    root: Path
    read_only: Sequence[Path] = ()

    @contextmanager
    def place(self, path: str, *, writing: bool = False, make_parents: bool = False) -> Iterator[Place]:
        """Find `path`, relative to the root or absolute inside it; it need not exist, its directory must.

        Raises:
            BadArgument: it leaves the root, is not to be written, or its directory is missing or none.
            OSError: the system refused.
        """
        walk = _Walk(self, writing=writing, make_parents=make_parents)
        try:
            yield walk.to(path)
        finally:
            walk.close()

    def remainder(self, path: PurePosixPath) -> tuple[str, ...] | None:
        """Return the part of an absolute path below the root, by whatever name it reaches the root."""
        try:
            root = self.root.stat()
        except OSError:
            return None
        for parent in [path, *path.parents]:
            with suppress(OSError):
                if os.path.samestat(Path(parent).stat(), root):
                    return path.relative_to(parent).parts
        return None


@dataclass
class _Walk:
    """One walk: the directories from the root down to where it stands, all open."""

    workspace: Workspace
    writing: bool
    make_parents: bool
    asked: str = ""
    stack: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    links: int = 0

    def to(self, path: str) -> Place:
        if not path or "\0" in path:
            raise BadArgument(f"{shorten(path)} is not a path: give one relative to the working directory.")
        if path.split("/")[0] == "~":
            raise BadArgument(f"{shorten(path)} is not expanded here: give a path in the working directory.")
        self.asked = path
        self.stack.append(os.open(self.workspace.root, _DIRECTORY & ~os.O_NOFOLLOW))
        todo = deque(self._parts(path))
        while todo:
            part = todo.popleft()
            if part == "..":
                self._up()
            elif (target := _link_target(part, self.stack[-1])) is not None:
                self._follow(target, todo)
            elif todo:
                self._down(part)
            else:
                return self._found(part, [*self.names, part])
        return self._found(".", self.names)

    def close(self) -> None:
        while self.stack:
            os.close(self.stack.pop())

    def _found(self, name: str, parts: list[str]) -> Place:
        if self.writing:
            self._check_writable(parts)
        return Place(self.stack[-1], name, tuple(parts))

    def _parts(self, path: str) -> tuple[str, ...]:
        pure = PurePosixPath(path)
        if not pure.is_absolute():
            return pure.parts
        parts = self.workspace.remainder(pure)
        if parts is None:
            raise self._outside()
        return parts

    def _up(self) -> None:
        if not self.names:
            raise self._outside()
        os.close(self.stack.pop())
        self.names.pop()

    def _follow(self, target: str, todo: deque[str]) -> None:
        self.links += 1
        if self.links > _MOST_LINKS:
            raise BadArgument(
                f"{shorten(self.asked)} runs through too many symbolic links: use the path they stand for."
            )
        parts = self._parts(target)
        if target.startswith("/"):
            while self.names:
                self._up()
        todo.extendleft(reversed(parts))

    def _down(self, part: str) -> None:
        try:
            self.stack.append(os.open(part, _DIRECTORY, dir_fd=self.stack[-1]))
        except FileNotFoundError:
            if not self.make_parents:
                raise BadArgument(f"There is no directory {self._here(part)}: check the path.") from None
            self._make(part)
        except OSError as error:
            if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                raise
            raise BadArgument(f"{self._here(part)} is not a directory: check the path.") from None
        self.names.append(part)

    def _make(self, part: str) -> None:
        self._check_writable([*self.names, part])
        with suppress(FileExistsError):
            os.mkdir(part, dir_fd=self.stack[-1])
        self.stack.append(os.open(part, _DIRECTORY, dir_fd=self.stack[-1]))

    def _check_writable(self, parts: list[str]) -> None:
        target = Path(os.path.realpath(self.workspace.root)).joinpath(*parts)
        on_the_way = {(status.st_dev, status.st_ino) for status in map(os.fstat, self.stack)}
        for root in self.workspace.read_only:
            inside = target.is_relative_to(os.path.realpath(root))
            with suppress(OSError):
                status = root.stat()
                inside = inside or (status.st_dev, status.st_ino) in on_the_way
            if inside:
                raise BadArgument(
                    f"{shorten(self.asked)} is read-only here, because {shorten(str(root))} belongs to the "
                    "runs and agents of the server: write somewhere else."
                )

    def _here(self, part: str) -> str:
        return printable("/".join([*self.names, part]))

    def _outside(self) -> BadArgument:
        return BadArgument(
            f"{shorten(self.asked)} leads outside the working directory {self.workspace.root}, where nothing "
            "can be read or written: use a path inside it."
        )


def _link_target(name: str, directory: int) -> str | None:
    try:
        return os.readlink(name, dir_fd=directory)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT):
            return None
        raise


def printable(path: str) -> str:
    """Return a path as text for one line of valid Unicode, whatever bytes its name holds."""
    text = path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return "".join(c if c.isprintable() else "\ufffd" for c in text)


def kind(mode: int) -> str:
    """Return what a file that cannot be read or written is called."""
    if stat.S_ISDIR(mode):
        return "a directory"
    if stat.S_ISFIFO(mode):
        return "a FIFO"
    if stat.S_ISSOCK(mode):
        return "a socket"
    if stat.S_ISLNK(mode):
        return "a symbolic link"
    return "a device"
