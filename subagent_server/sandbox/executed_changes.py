"""Compare the files that can run code in a directory before and after a run: what nothing else has prevented.

    before = look(cwd, own_hooks(cwd))
    ...
    changes(before, look(cwd, before.hooks), since)

A look sees the names that other programs execute, and the repositories, down to `MAX_DEPTH` directories below
the top; it follows no link, and ends at a bound.
"""

import os
import stat
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from subagent_server.domain.executed_files import FIRST_OF_SEVERAL, executed_by
from subagent_server.host.inside import directory_below, open_real, status_below
from subagent_server.sandbox.git_directories import git_settings, makes_repository

MAX_DEPTH = 10
MAX_NAMES, MAX_NAMES_WITH_LAST = 20_000, 5_000
MAX_SECONDS = 0.5
_LAST = frozenset(("node_modules", ".venv", "venv", "vendor", "target", ".tox", ".nox", "__pycache__"))
"""Directories of what was downloaded or made are looked at after all others."""
_EXECUTED_BY_GIT = ("config", "config.worktree", "commondir", "rebase-merge/git-rebase-todo")


class Fingerprint(NamedTuple):
    """The attributes of a file that each write, rename or change of mode alters; a directory's identity."""

    device: int
    inode: int
    mode: int = 0
    size: int = 0
    modified: int = 0
    changed: int = 0


@dataclass(frozen=True)
class Seen:
    """The findings of a look, by path; a directory's path ends with `/`. `whole` if no bound ended the look.

    `repositories` are the directories that git takes for one. `hooks` are other directories of hooks than
    usual. `cut` if a bound ended it before the user's own directories were seen, and not only what was
    downloaded.
    """

    fingerprints: Mapping[str, Fingerprint]
    repositories: frozenset[str]
    hooks: tuple[str, ...]
    whole: bool
    cut: bool


def look(
    cwd: Path, hooks: tuple[str, ...] = (), *, leave_out: Callable[[Path], bool] = lambda _: False
) -> Seen:
    """Return the files that can run code in a directory, by its real path; unreadable ones are left out.

    `hooks` are other places than usual, by `own_hooks` from before the run: files which the run has written
    do not decide where to look. A directory that is to be left out is not looked at.
    """
    walk = _Look(cwd, leave_out, hooks)
    with suppress(OSError):
        walk.top = open_real(cwd)
        try:
            walk.run()
        finally:
            os.close(walk.top)
    return Seen(walk.fingerprints, frozenset(walk.repositories), walk.hooks, walk.whole, walk.cut)


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


def new_repositories(before: Seen, after: Seen) -> list[str]:
    """Return the repositories that came between two looks, if that is sure: none if the first was bounded."""
    return sorted(after.repositories - before.repositories) if before.whole else []


def own_hooks(cwd: Path) -> tuple[str, ...]:
    """Return the files and hooks below the directory that its configuration of git names. Runs git."""
    executed = git_settings(os.environ, cwd).executed
    return tuple(str(path.relative_to(cwd)) for path in executed if path.is_relative_to(cwd))


@dataclass
class _Look:
    cwd: Path
    leave_out: Callable[[Path], bool]
    hooks: tuple[str, ...]
    fingerprints: dict[str, Fingerprint] = field(default_factory=dict)
    repositories: set[str] = field(default_factory=set)
    whole: bool = True
    cut: bool = False
    top: int = -1
    _names: int = 0
    _deadline: float = field(default_factory=lambda: time.monotonic() + MAX_SECONDS)

    def run(self) -> None:
        """Look level by level, so that a bound costs what lies deepest."""
        for path in self.hooks:
            self._tree(path)
            self._see(path)
        first, last = deque([("", 0)]), deque[tuple[str, int]]()
        while first or (last and self._names < MAX_NAMES_WITH_LAST):
            is_last = not first
            path, depth = (first or last).popleft()
            for below in self._level(path):
                if depth < MAX_DEPTH and not self.leave_out(self.cwd / below):
                    comes_last = is_last or Path(below).name in _LAST
                    (last if comes_last else first).append((below, depth + 1))
            if not self.whole and not is_last:
                self.cut = True
                return
        self.whole = self.whole and not last

    def _level(self, path: str) -> list[str]:
        """Look at the names of one directory, and return its ordinary directories."""
        entries = self._entries(path)
        if makes_repository(set(entries)):
            self._repository(path)
            self._see(_joined(path, "HEAD"))
        above = [name for name in (Path(path).name,) if name in FIRST_OF_SEVERAL]
        ordinary = []
        for name, is_directory in entries.items():
            place = _joined(path, name)
            if name == ".git" and is_directory:
                self._repository(place)
            elif executed_by((*above, name), is_directory=True) is not None:
                (self._tree if is_directory else self._see)(place)
            elif is_directory:
                ordinary.append(place)
        return ordinary

    def _repository(self, path: str) -> None:
        self.repositories.add(path)
        self._see(path, is_directory=True)
        for name in _EXECUTED_BY_GIT:
            self._see(_joined(path, name))
        for name in self._entries(_joined(path, "hooks")):
            if not name.endswith(".sample"):
                self._see(_joined(path, f"hooks/{name}"))
        for name, is_directory in self._entries(_joined(path, "modules")).items():
            if is_directory and self._names < MAX_NAMES:
                self._repository(_joined(path, f"modules/{name}"))

    def _tree(self, path: str) -> None:
        """Look at a directory of which everything counts."""
        self._see(path, is_directory=True)
        for name, is_directory in self._entries(path).items():
            (self._tree if is_directory else self._see)(_joined(path, name))

    def _entries(self, path: str) -> dict[str, bool]:
        """Return the names in a directory, and whether each is a directory; nothing past a bound.

        A directory that cannot be listed may hide a repository in which git works, so it is seen itself.
        """
        found: dict[str, bool] = {}
        try:
            with (
                directory_below(self.top, path or ".", os.O_RDONLY) as directory,
                os.scandir(directory) as entries,
            ):
                for entry in entries:
                    if self._names >= MAX_NAMES or time.monotonic() > self._deadline:
                        self.whole = False
                        break
                    self._names += 1
                    found[entry.name] = entry.is_dir(follow_symlinks=False)
        except PermissionError:
            self._see(path, is_directory=True)
        except OSError:
            pass
        return found

    def _see(self, path: str, *, is_directory: bool = False) -> None:
        status = status_below(self.top, path)
        if status is not None:
            if stat.S_ISDIR(status.st_mode) and is_directory:
                self.fingerprints[f"{path}/"] = Fingerprint(status.st_dev, status.st_ino)
            elif not stat.S_ISDIR(status.st_mode) and not is_directory:
                self.fingerprints[path] = Fingerprint(
                    status.st_dev,
                    status.st_ino,
                    status.st_mode,
                    status.st_size,
                    status.st_mtime_ns,
                    status.st_ctime_ns,
                )


def _joined(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name
