"""Compare the files that can run code in a directory before and after a run: mounts cannot protect all.

    before = look(cwd)
    ...
    changes(before, look(cwd, before.places), since)

A look sees the names that other programs execute, and the repositories, down to `MAX_DEPTH` directories below
the top; it follows no link, opens no file, and ends at a bound.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from subagent_server.domain.executed_files import executed_by
from subagent_server.sandbox import git_directories
from subagent_server.sandbox.git_directories import COMMONDIR

MAX_DEPTH = 10
MAX_NAMES, MAX_NAMES_WITH_LAST = 20_000, 5_000
MAX_SECONDS = 0.5
_LAST = frozenset(("node_modules", ".venv", "venv", "vendor", "target", ".tox", ".nox", "__pycache__"))
"""Directories of what was downloaded or made are looked at after all others."""
_EXECUTED_BY_GIT = ("config", "config.worktree", COMMONDIR, "rebase-merge/git-rebase-todo")
_REPOSITORIES_WITHIN = ("modules", "worktrees")
_LISTING = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Fingerprint(NamedTuple):
    """The attributes of a file that each write, rename or change of mode alters; a directory's identity."""

    device: int
    inode: int
    mode: int = 0
    size: int = 0
    modified: int = 0
    changed: int = 0


class Places(NamedTuple):
    """Where else than in usual places the repository of the directory keeps what git executes."""

    git_directories: tuple[Path, ...] = ()
    hooks: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Seen:
    """The findings of a look, by path; a directory's path ends with `/`. `whole` if no bound ended the look.

    `cut` if a bound ended it before the user's own directories were seen, and not only what was downloaded.
    """

    fingerprints: Mapping[str, Fingerprint]
    places: Places
    whole: bool
    cut: bool


def look(cwd: Path, places: Places | None = None, *, leave_out: Path | None = None) -> Seen:
    """Return the files that can run code in a directory, by its real path; unreadable ones are left out.

    `places` come from an earlier look, so that files which a run has written since do not decide where to
    look.
    """
    walk = _Look(cwd, leave_out, _places(cwd) if places is None else places)
    with suppress(OSError):
        walk.run()
    return Seen(walk.fingerprints, walk.places, walk.whole, walk.cut)


def changes(before: Seen | None, after: Seen, since: float) -> list[str]:
    """Return the paths that came, or changed, between two looks; of a new directory not those below.

    If the first look is missing, or ended before that path, times decide: `since` is the beginning of the
    first look, in seconds. A file that was changed during that look counts too.
    """
    found: list[str] = []
    for path, print_ in sorted(after.fingerprints.items()):
        known = None if before is None else before.fingerprints.get(path)
        if known is not None:
            is_new = known != print_ or print_.changed >= since * 1e9
        else:
            is_new = (before is not None and before.whole) or print_.changed >= since * 1e9
        if is_new and not any(path.startswith(above) for above in found if above.endswith("/")):
            found.append(path)
    return found


def _places(cwd: Path) -> Places:
    """Return where the repository of a directory lies elsewhere, and which hooks it names there."""
    common = git_directories.common_directory(cwd)
    hooks = git_directories.git_settings(os.environ, cwd).executed
    return Places(
        () if common is None else (common,), tuple(path for path in hooks if path.is_relative_to(cwd))
    )


@dataclass
class _Look:
    cwd: Path
    leave_out: Path | None
    places: Places
    fingerprints: dict[str, Fingerprint] = field(default_factory=dict)
    whole: bool = True
    cut: bool = False
    _names: int = 0
    _deadline: float = field(default_factory=lambda: time.monotonic() + MAX_SECONDS)

    def run(self) -> None:
        """Look level by level, so that a bound costs what lies deepest."""
        for directory in self.places.git_directories:
            self._repository(str(directory))
        for directory in self.places.hooks:
            self._tree(os.path.relpath(directory, self.cwd))
        first, last = deque([("", 0)]), deque[tuple[str, int]]()
        while first or (last and self._names < MAX_NAMES_WITH_LAST):
            is_last = not first
            path, depth = (first or last).popleft()
            for below in self._level(path):
                if depth < MAX_DEPTH and self.cwd / below != self.leave_out:
                    comes_last = is_last or Path(below).name in _LAST
                    (last if comes_last else first).append((below, depth + 1))
            if not self.whole and not is_last:
                self.cut = True
                return
        self.whole = self.whole and not last

    def _level(self, path: str) -> list[str]:
        """Look at the names of one directory, and return its ordinary directories."""
        entries = self._entries(path)
        if git_directories.makes_repository(set(entries)):
            self._repository(path)
            self._file(_joined(path, "HEAD"))
        ordinary = []
        for name, is_directory in entries.items():
            place = _joined(path, name)
            if name == ".git" and is_directory:
                self._repository(place)
            elif executed_by((name,), is_directory=True) is not None:
                if is_directory:
                    self._tree(place)
                else:
                    self._file(place)
            elif is_directory:
                ordinary.append(place)
        return ordinary

    def _repository(self, path: str) -> None:
        self._directory(path)
        for name in _EXECUTED_BY_GIT:
            self._file(_joined(path, name))
        for name in self._entries(_joined(path, "hooks")):
            if not name.endswith(".sample"):
                self._file(_joined(path, f"hooks/{name}"))
        for within in _REPOSITORIES_WITHIN:
            for name, is_directory in self._entries(_joined(path, within)).items():
                if is_directory and self._names < MAX_NAMES:
                    self._repository(_joined(path, f"{within}/{name}"))

    def _tree(self, path: str) -> None:
        """Look at a directory of which everything counts."""
        self._directory(path)
        for name, is_directory in self._entries(path).items():
            (self._tree if is_directory else self._file)(_joined(path, name))

    def _entries(self, path: str) -> dict[str, bool]:
        """Return the names in a directory, and whether each is a directory; nothing past a bound.

        A directory that cannot be listed may hide a repository in which git works, so it is seen itself.
        """
        found: dict[str, bool] = {}
        try:
            descriptor = self._open(path)
            try:
                with os.scandir(descriptor) as entries:
                    for entry in entries:
                        if self._names >= MAX_NAMES or time.monotonic() > self._deadline:
                            self.whole = False
                            break
                        self._names += 1
                        found[entry.name] = entry.is_dir(follow_symlinks=False)
            finally:
                os.close(descriptor)
        except PermissionError:
            self._directory(path)
        except OSError:
            pass
        return found

    def _open(self, path: str) -> int:
        """Open a directory part by part, so that no link leads elsewhere."""
        descriptor = os.open("/" if path.startswith("/") else self.cwd, _LISTING)
        for part in Path(path).parts:
            above = descriptor
            try:
                descriptor = os.open(part, _LISTING, dir_fd=above)
            finally:
                os.close(above)
        return descriptor

    def _file(self, path: str) -> None:
        self._see(
            path,
            path,
            lambda status: Fingerprint(
                status.st_dev,
                status.st_ino,
                status.st_mode,
                status.st_size,
                status.st_mtime_ns,
                status.st_ctime_ns,
            ),
        )

    def _directory(self, path: str) -> None:
        self._see(path, f"{path}/", lambda status: Fingerprint(status.st_dev, status.st_ino))

    def _see(self, path: str, key: str, fingerprint_of: Callable[[os.stat_result], Fingerprint]) -> None:
        above, name = os.path.split(path)
        with suppress(OSError):
            directory = self._open(above)
            try:
                status = os.stat(name, dir_fd=directory, follow_symlinks=False)
                self.fingerprints[key] = fingerprint_of(status)
            finally:
                os.close(directory)


def _joined(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name
