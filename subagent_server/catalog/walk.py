"""Find the files of a directory tree that may be agents, within bounds of number and time."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from subagent_server.catalog.loading import CONFIGURATION, MARKDOWN
from subagent_server.catalog.problems import Kind, Problem, shown, why

MAX_ENTRIES = 20_000
"""Directory entries that are read in one tree; the rest is left out and reported."""
MAX_SECONDS = 1.0
"""How long the names of one tree are read, without the time for the files themselves."""

Identity = tuple[int, int]
_SUFFIXES = MARKDOWN | CONFIGURATION
_ELSEWHERE = frozenset({".toml", ".mdc"})
"""The agents of Codex and the rules of Cursor."""
_HIDDEN = "hidden files and directories are not read"
_NOT_BELOW = "the files in it are read, its sub-directories are not"


@dataclass(frozen=True)
class FoundFile:
    """A file to load, or a problem with what is at that path."""

    path: Path
    problem: Problem | None = None


def agent_files(directory: Path, seen: dict[Identity, Path]) -> list[FoundFile]:
    """Return the files of a directory tree with the suffix of an agent file, sorted in each directory.

    Links to files are followed. Of a directory outside to which a link leads the files are read, and not its
    sub-directories: a link to `/` is not the whole disk. What was reached before, by whatever name, is not
    read again: `seen` remembers it across calls, by device and inode. Hidden files and directories are listed
    as skipped.
    """
    return list(_TreeWalk(directory, seen).found_files())


def _problem(path: Path, kind: Kind, reason: str) -> FoundFile:
    return FoundFile(path, Problem(path, None, kind, reason))


def _is_directory(entry: "os.DirEntry[str]") -> bool:
    """Whether an entry is a directory, or a link to one; no if the system does not say."""
    try:
        return entry.is_dir()
    except OSError:
        return False


@dataclass(frozen=True)
class _Directory:
    """A directory to read; `outside` if a link has led out of the tree."""

    path: Path
    outside: bool = False


class _TreeWalk:
    def __init__(self, top: Path, seen: dict[Identity, Path]) -> None:
        self._seen = seen
        self._left = MAX_ENTRIES
        self._until = time.monotonic() + MAX_SECONDS
        self._pending = [_Directory(top)]
        self._top = top
        self._real_top = os.path.realpath(top)

    def found_files(self) -> Iterator[FoundFile]:
        while self._pending:
            place = self._pending.pop()
            try:
                yield from self._directory(place)
            except FileNotFoundError:
                yield _problem(place.path, "warning", "there is no such directory")
            except OSError as error:
                yield _problem(place.path, "error", f"the directory cannot be read ({why(error)})")

    def _directory(self, place: _Directory) -> Iterator[FoundFile]:
        earlier = self._earlier(place.path)
        if earlier is not None:
            yield _problem(place.path, "skipped", f"it is {shown(earlier)}, which was read already")
            return
        below: list[_Directory] = []
        with os.scandir(place.path) as entries:
            here = sorted(islice(entries, self._left + 1), key=lambda entry: entry.name)
        for entry in here:
            self._left -= 1
            if excess := self._excess():
                yield _problem(self._top, "error", f"{excess}: the rest is not read")
                self._pending.clear()
                return
            if not _is_directory(entry):
                suffix = os.path.splitext(entry.name)[1].lower()  # noqa: PTH122 - of 20,000
                if suffix in _SUFFIXES:
                    yield from self._file(Path(entry.path))
                elif suffix in _ELSEWHERE:
                    yield _problem(
                        Path(entry.path), "skipped", f"files of the kind {suffix} are not read here"
                    )
            elif entry.name.startswith("."):
                yield _problem(Path(entry.path), "skipped", _HIDDEN)
            else:
                below.append(_Directory(Path(entry.path), outside=self._leads_out(entry)))
        if place.outside and below:
            yield _problem(place.path, "skipped", f"a link leads out of {shown(self._top)}: {_NOT_BELOW}")
        else:
            self._pending += reversed(below)

    def _excess(self) -> str | None:
        if self._left < 0:
            return f"more than {MAX_ENTRIES} entries"
        if time.monotonic() > self._until:
            return f"its names could not be read within {MAX_SECONDS:g} s"
        return None

    def _leads_out(self, entry: "os.DirEntry[str]") -> bool:
        return entry.is_symlink() and not Path(os.path.realpath(entry.path)).is_relative_to(self._real_top)

    def _file(self, path: Path) -> Iterator[FoundFile]:
        if path.name.startswith("."):
            yield _problem(path, "skipped", _HIDDEN)
            return
        try:
            earlier = self._earlier(path)
        except OSError:
            earlier = None  # reading the file will say what is wrong with it
        if earlier is None:
            yield FoundFile(path)
        else:
            yield _problem(path, "skipped", f"it is {shown(earlier)}, which was read already")

    def _earlier(self, path: Path) -> Path | None:
        """Return the path under which this very file or directory was reached before, if it was."""
        status = path.stat()
        identity = status.st_dev, status.st_ino
        earlier = self._seen.get(identity)
        self._seen.setdefault(identity, path)
        return earlier
