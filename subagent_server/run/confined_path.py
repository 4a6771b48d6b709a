"""Open a path that is not trusted, below a root that it cannot leave by links.

A path is walked component by component on open directories (openat(2) with O_NOFOLLOW), and symbolic links
are followed by hand, so a component swapped meanwhile cannot lead out of the root. A link may point to any
path inside the root. The root itself is a real path, and is opened without following any link.
"""

import errno
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from subagent_server.run.errors import BadArgument, shorten
from subagent_server.run.files import held_open

_MOST_LINKS = 40
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

Check = Callable[["Reached"], None]
"""Raises BadArgument if what was reached must not be used."""


class LeadsOutside(BadArgument):
    """A path leaves its confining directory."""


@dataclass(frozen=True)
class PathInside:
    """A name (`.`: the directory itself) in an open directory; never a symbolic link when it was found."""

    directory: int
    name: str
    parts: tuple[str, ...]

    @property
    def shown(self) -> str:
        """The path relative to the root, for people and models."""
        return printable("/".join(self.parts)) or "."

    def status(self) -> os.stat_result | None:
        """Return the status of the entry, without following a link; None if there is no entry."""
        try:
            return os.stat(self.name, dir_fd=self.directory, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def open(self, flags: int, mode: int = 0o666) -> int:
        """Open it: never through a link, never waiting for the other end of a FIFO."""
        safe = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        return os.open(self.name, flags | safe, mode, dir_fd=self.directory)

    def open_directory(self) -> int:
        """Open the reached directory for listing."""
        return self.open(os.O_RDONLY | os.O_DIRECTORY)


@dataclass(frozen=True)
class Reached:
    """The end of a walk: `asked` is the path as the caller wrote it, `parts` the real path below the root.

    `directories` are open, from the root down to the last existing directory.
    """

    asked: str
    parts: tuple[str, ...]
    directories: Sequence[int]
    is_directory: bool


@contextmanager
def inside(
    root: Path, path: str, *, check: Check | None = None, make_parents: bool = False
) -> Iterator[PathInside]:
    """Find `path`, relative to `root` or absolute inside. The file need not exist, its directory must.

    `check` is called before a directory is made and before the path is returned.

    Raises:
        LeadsOutside: the path leaves the root.
        BadArgument: `path` is not a path, or its directory is missing or is a file; or `check` refuses.
        OSError: the system refused, or the root is a link now.
    """
    walk = _Walk(root, check, make_parents)
    try:
        yield walk.to(path)
    finally:
        walk.close()


def open_real(directory: Path) -> int:
    """Open a directory by its real path, which no symbolic link is a part of.

    Raises:
        OSError: it is missing, or a link has come into the path.
    """
    # Part by part, because O_NOFOLLOW looks at the last part of a path alone.
    descriptor = os.open(directory.anchor or ".", _DIRECTORY)
    for part in directory.parts[bool(directory.anchor) :]:
        with held_open(descriptor) as above:
            descriptor = os.open(part, _DIRECTORY, dir_fd=above)
    return descriptor


@contextmanager
def directory_below(directory: int, path: str, flags: int = os.O_PATH) -> Iterator[int]:
    """Open a directory below an open one (`.`: itself), part by part and through no link.

    Raises:
        OSError: it is missing, or something on the way is no directory.
    """
    *parts, last = PurePosixPath(path).parts or (".",)
    here = os.open(".", _DIRECTORY, dir_fd=directory)
    for part in parts:
        with held_open(here) as above:
            here = os.open(part, _DIRECTORY, dir_fd=above)
    with held_open(here) as above:
        here = os.open(last, flags | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    with held_open(here):
        yield here


def status_below(directory: int, path: str) -> os.stat_result | None:
    """Return the status of a path below an open directory, through no link; None if it is not there."""
    above, _, name = path.rpartition("/")
    with suppress(OSError):
        if not above:
            return os.stat(name, dir_fd=directory, follow_symlinks=False)
        with directory_below(directory, above) as inner:
            return os.stat(name, dir_fd=inner, follow_symlinks=False)
    return None


def names_below(directory: int, path: str, most: int) -> list[str]:
    """Return up to `most` names in a directory below an open one. Raises as `directory_below` does."""
    with directory_below(directory, path, os.O_RDONLY) as inner, os.scandir(inner) as entries:
        return [entry.name for _, entry in zip(range(most), entries, strict=False)]


@dataclass
class _Walk:
    """One walk: the directories from the root down to its present one, all open."""

    root: Path
    check: Check | None
    make_parents: bool
    asked: str = ""
    stack: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    links: int = 0

    def to(self, path: str) -> PathInside:
        if not path or "\0" in path or not is_text(path):
            raise BadArgument(f"{shorten(path)} is not a path: give one relative to the working directory.")
        if path.split("/")[0] == "~":
            raise BadArgument(f"{shorten(path)} is not expanded here: give a path in the working directory.")
        self.asked = path
        self.stack.append(open_real(self.root))
        todo = deque(self._parts(path))
        while todo:
            part = todo.popleft()
            if part == "..":
                self._up()
            elif (target := _link_target(part, self.stack[-1])) is not None:
                self._follow(target, todo)
            elif todo:
                self._down(part, todo)
            else:
                return self._found(part, [*self.names, part])
        return self._found(".", self.names)

    def close(self) -> None:
        while self.stack:
            os.close(self.stack.pop())

    def _found(self, name: str, parts: list[str]) -> PathInside:
        self._ask(parts, is_directory=name == ".")
        return PathInside(self.stack[-1], name, tuple(parts))

    def _ask(self, parts: Sequence[str], *, is_directory: bool) -> None:
        if self.check is not None:
            self.check(Reached(self.asked, tuple(parts), self.stack, is_directory))

    def _parts(self, path: str) -> tuple[str, ...]:
        pure = PurePosixPath(path)
        if not pure.is_absolute():
            return pure.parts
        parts = self._remainder(pure)
        if parts is None:
            raise self._outside()
        return parts

    def _remainder(self, path: PurePosixPath) -> tuple[str, ...] | None:
        """Return the part of an absolute path below the root, by whatever name it reaches the root."""
        root = os.fstat(self.stack[0])
        for parent in [path, *path.parents]:
            with suppress(OSError):
                if os.path.samestat(Path(parent).stat(), root):
                    return path.relative_to(parent).parts
        return None

    def _up(self) -> None:
        if not self.names:
            raise self._outside()
        os.close(self.stack.pop())
        self.names.pop()

    def _follow(self, target: str, todo: deque[str]) -> None:
        self.links += 1
        if self.links > _MOST_LINKS:
            raise BadArgument(
                f"{shorten(self.asked)} runs through too many symbolic links: use the path that they lead to."
            )
        parts = self._parts(target)
        if target.startswith("/"):
            while self.names:
                self._up()
        todo.extendleft(reversed(parts))

    def _down(self, part: str, rest: Sequence[str]) -> None:
        try:
            self.stack.append(os.open(part, _DIRECTORY, dir_fd=self.stack[-1]))
        except FileNotFoundError:
            if not self.make_parents:
                raise BadArgument(f"There is no directory {self._here(part)}: check the path.") from None
            self._make(part, rest)
        except OSError as error:
            if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                raise
            raise BadArgument(f"{self._here(part)} is not a directory: check the path.") from None
        self.names.append(part)

    def _make(self, part: str, rest: Sequence[str]) -> None:
        """Make a directory. A new directory is empty, so the whole path is known, and is judged first."""
        if ".." in rest:
            self._ask([*self.names, part], is_directory=True)
        else:
            self._ask([*self.names, part, *rest], is_directory=False)
        with suppress(FileExistsError):
            os.mkdir(part, dir_fd=self.stack[-1])
        self.stack.append(os.open(part, _DIRECTORY, dir_fd=self.stack[-1]))

    def _here(self, part: str) -> str:
        return printable("/".join([*self.names, part]))

    def _outside(self) -> LeadsOutside:
        return LeadsOutside(
            f"{shorten(self.asked)} leads outside the working directory {self.root}, where nothing "
            "can be read or written: use a path inside it."
        )


def is_text(path: str) -> bool:
    """Whether a path can be written into a record: half of a surrogate pair cannot."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _link_target(name: str, directory: int) -> str | None:
    try:
        return os.readlink(name, dir_fd=directory)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT):
            return None
        raise


def printable(path: str) -> str:
    """Return a path as text for one line of valid Unicode, whatever bytes its name holds."""
    return "".join(c if c.isprintable() else "\ufffd" for c in path)
