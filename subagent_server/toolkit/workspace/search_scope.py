"""Where a search may look: below the working directory, and never in a runs root."""

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from subagent_server.domain.errors import BadArgument, shorten
from subagent_server.host.inside import PathInside, printable
from subagent_server.sandbox.box import Box, build_search_box
from subagent_server.sandbox.refusal import BoxRefused
from subagent_server.toolkit.workspace.paths import Workspace, kind

_RUNS = ".subagent"
"""A directory of this name holds the runs of a project."""
BINARY_HEAD = 1 << 16
"""A file with a NUL byte among so many is binary from its start."""
_CHUNK = 1 << 20
_MOST_LOOKED_AT = 64 * _CHUNK
_BYTE_ORDER_MARKS = (b"\xff\xfe", b"\xfe\xff")
LEFT_OUT = (".git", _RUNS)
"""Names of directories that no search enters."""


@dataclass(frozen=True)
class SearchScope:
    """The working directory of a run, by its real path, less the runs roots in it.

    `runs_root` is the real path of the run's own root; `is_runs_root` decides for every other directory. With
    a `bubblewrap`, the program that searches runs in a box where nothing else can be seen.
    """

    cwd: Path
    runs_root: Path | None = None
    is_runs_root: Callable[[Path], bool] = lambda _: False
    bubblewrap: Path | None = None

    @contextmanager
    def open(self, path: str | None, *, files: bool) -> Iterator["SearchTarget"]:
        """Open the directory at `path`, or that of the file there if `files` are allowed.

        Raises:
            BadArgument: `path` leaves the working directory, is missing, is not searchable or is a runs root.
            OSError: the system refused.
        """
        with Workspace(self.cwd).place(path or ".") as place:
            self._check(place)
            status = place.status()
            if status is None:
                raise BadArgument(f"There is nothing at {place.shown}: check the path.")
            if stat.S_ISDIR(status.st_mode):
                descriptor = place.open_directory()
                try:
                    yield SearchTarget(self, descriptor, place.parts)
                finally:
                    os.close(descriptor)
                return
            if not stat.S_ISREG(status.st_mode):
                raise BadArgument(
                    f"{place.shown} is {kind(status.st_mode)}, not to be searched: use another path."
                )
            if not files:
                raise BadArgument(f"{place.shown} is a file: give the path of a directory.")
            yield SearchTarget(self, place.directory, place.parts[:-1], place)

    def holds_runs(self, parts: tuple[str, ...]) -> bool:
        """Whether the directory at `parts` below the working directory is a runs root."""
        directory = self.cwd.joinpath(*parts)
        return directory == self.runs_root or parts[-1:] == (_RUNS,) or self.is_runs_root(directory)

    def search_box(self, searcher: Path, parts: tuple[str, ...]) -> Box:
        """Return a box for a program that searches the directory at `parts`. Raises BoxRefused."""
        if self.bubblewrap is None:
            raise BoxRefused("no bubblewrap is known")
        hidden = [self.runs_root] if self.runs_root is not None else []
        return build_search_box(self.bubblewrap, searcher, self.cwd, self.cwd.joinpath(*parts), hidden)

    def _check(self, place: PathInside) -> None:
        depths = range(len(place.parts) + 1)
        if any(self.holds_runs(place.parts[:depth]) for depth in depths):
            raise BadArgument(
                f"{shorten(place.shown)} holds the runs of the server, which are not searched: "
                "use another path."
            )


@dataclass
class SearchTarget:
    """An open directory to search, and its path from the working directory; `file` limits the search."""

    scope: SearchScope
    descriptor: int
    parts: tuple[str, ...]
    file: PathInside | None = None
    _in_runs: dict[str, bool] = field(default_factory=lambda: {"": False})

    @property
    def base(self) -> str:
        """The path of the directory, relative to the working directory; empty for that itself."""
        return "/".join(self.parts)

    def shown(self, path: str) -> str:
        """Return a path below the directory as one below the working directory, in printable characters."""
        return printable(f"{self.base}/{path}" if self.parts else path)

    def leaves_out(self, path: str) -> bool:
        """Whether the file at `path` below the directory lies in a runs root."""
        above = path.rpartition("/")[0]
        known = self._in_runs.get(above)
        if known is None:
            names = above.split("/")
            known = any(self._is_root(tuple(names[:depth])) for depth in range(1, len(names) + 1))
            self._in_runs[above] = known
        return known

    def own_root(self) -> str | None:
        """Return the path of the run's own root from here if it lies below the directory."""
        here, root = self.scope.cwd.joinpath(*self.parts), self.scope.runs_root
        return str(root.relative_to(here)) if root is not None and root.is_relative_to(here) else None

    def _is_root(self, names: tuple[str, ...]) -> bool:
        path = "/".join(names)
        if path not in self._in_runs:
            self._in_runs[path] = self.scope.holds_runs((*self.parts, *names))
        return self._in_runs[path]


def first_zero(file: PathInside) -> int | None:
    """Return where the first NUL byte of a file's first 64 MiB is, None if there is none or it is UTF-16.

    Raises:
        OSError: it cannot be read.
    """
    with os.fdopen(file.open(os.O_RDONLY), "rb") as content:
        if content.peek(2)[:2] in _BYTE_ORDER_MARKS or not stat.S_ISREG(os.fstat(content.fileno()).st_mode):
            return None
        for start in range(0, _MOST_LOOKED_AT, _CHUNK):
            chunk = content.read(_CHUNK)
            if (found := chunk.find(b"\0")) >= 0:
                return start + found
            if not chunk:
                break
    return None
