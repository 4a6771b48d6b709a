"""The files of a directory tree that may be agents, whatever else is in there."""

import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from subagent_server.catalog.loading import CONFIGURATION, MARKDOWN
from subagent_server.catalog.problems import Kind, Problem, shown, why

MAX_ENTRIES = 20_000
"""Directory entries looked at in one tree: a link to `/` ends there, and is told of."""

Identity = tuple[int, int]


@dataclass(frozen=True)
class Finding:
    """A file to load, or a problem with what is at that path."""

    path: Path
    problem: Problem | None = None


def agent_files(directory: Path, seen: dict[Identity, Path]) -> Iterator[Finding]:
    """Yield what is in `directory` and below it by the suffix of an agent file, sorted within each directory.

    Links are followed. What was reached before, by whatever name, is not read again: `seen` remembers it
    across calls, by device and inode. Hidden files and directories are listed as skipped.
    """
    yield from _Walk(directory, seen).findings()


def _problem(path: Path, kind: Kind, reason: str) -> Finding:
    return Finding(path, Problem(path, None, kind, reason))


def _is_directory(path: Path) -> bool:
    """Whether `path` is one; no where the system will not say (`Path.is_dir` raises there)."""
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except OSError:
        return False


class _Walk:
    def __init__(self, top: Path, seen: dict[Identity, Path]) -> None:
        self._seen = seen
        self._left = MAX_ENTRIES
        self._pending = [top]
        self._top = top

    def findings(self) -> Iterator[Finding]:
        while self._pending:
            directory = self._pending.pop()
            try:
                yield from self._directory(directory)
            except FileNotFoundError:
                yield _problem(directory, "warning", "there is no such directory")
            except OSError as error:
                yield _problem(directory, "error", f"the directory cannot be read ({why(error)})")

    def _directory(self, directory: Path) -> Iterator[Finding]:
        earlier = self._earlier(directory)
        if earlier is not None:
            yield _problem(directory, "skipped", f"it is {shown(earlier)}, which was read already")
            return
        below: list[Path] = []
        for entry in sorted(directory.iterdir()):
            self._left -= 1
            if self._left < 0:
                yield _problem(self._top, "error", f"more than {MAX_ENTRIES} entries: the rest is not read")
                self._pending.clear()
                return
            if _is_directory(entry) and not entry.name.startswith("."):
                below.append(entry)
            else:
                yield from self._entry(entry)
        self._pending += reversed(below)

    def _entry(self, path: Path) -> Iterator[Finding]:
        is_directory = _is_directory(path)
        if not is_directory and path.suffix.lower() not in MARKDOWN | CONFIGURATION:
            return
        if path.name.startswith("."):
            yield _problem(path, "skipped", "hidden files and directories are not read")
            return
        try:
            earlier = self._earlier(path)
        except OSError:
            earlier = None  # reading the file will say what is wrong with it
        if earlier is None:
            yield Finding(path)
        else:
            yield _problem(path, "skipped", f"it is {shown(earlier)}, which was read already")

    def _earlier(self, path: Path) -> Path | None:
        """Return the path under which this very file or directory was reached before, if it was."""
        status = path.stat()
        identity = status.st_dev, status.st_ino
        earlier = self._seen.get(identity)
        self._seen.setdefault(identity, path)
        return earlier
