"""The mounts that keep files which other programs execute read-only in a box, existing or not.

    placeholders = Placeholders()
    protected = protect(cwd, placeholders, lifted)     # arguments of bubblewrap, after those that show `cwd`
    ...                                                # boxes
    placeholders.release()                             # after the last one

Mounts protect what they lie on and nothing beside it: repositories below the working directory, and names
that a glob stands for, stay open. `executed_changes.py` looks for these when the run ends.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from subagent_server.domain.executed_files import executed_by, is_lifted, names_to_hold
from subagent_server.host.inside import printable
from subagent_server.sandbox import git_directories
from subagent_server.sandbox.placeholders import COMMONDIR, Placeholders, remove_if_unused

MAX_ENTRIES = 20_000
"""How many names of the directory are compared with the table. Literal names are asked for one by one."""

_MISSING_CONFIGURATION = "it is a missing file that the configuration of git includes (an empty one helps)"


@dataclass
class ProtectedNames:
    """The mounts that a box needs beside its others, in this order.

    `writable` lie in the working directory, or are the parts of its repository that are elsewhere. `open` are
    the protected names that could not be held, each with the reason, for people.
    """

    mounts: list[tuple[str, Path]] = field(default_factory=list)
    open: list[str] = field(default_factory=list)

    @property
    def arguments(self) -> list[str]:
        """The arguments of bubblewrap. A later mount lies over an earlier one."""
        return [word for how, path in self.mounts for word in (how, str(path), str(path))]

    @property
    def read_only(self) -> list[Path]:
        """The places that cannot be written in the box."""
        return [path for how, path in self.mounts if how == "--ro-bind"]

    @property
    def writable(self) -> list[Path]:
        """The places that are mounts of their own, so that they cannot be moved, and can be written."""
        return [path for how, path in self.mounts if how == "--bind"]


def protect(
    cwd: Path, placeholders: Placeholders, lifted: Sequence[str] = (), branches: str | None = None
) -> ProtectedNames:
    """Return the mounts for a writable directory, by its real path; missing names are held from here on.

    `lifted` are paths below it for which the author of the agent lifts the rule. In a linked worktree,
    `branches` is the first part of the names of all branches that may be written, if these are not all.
    """
    protection = _Protection(cwd, placeholders, lifted, branches)
    for name in protection.names():
        protection.entry(name)
    return protection.found


def remove_left_placeholders(cwd: Path) -> None:
    """Remove the placeholders that killed processes left in a directory, unless others use them."""
    for directory in (cwd, cwd / ".git"):
        for name in git_directories.READ_ONLY:
            remove_if_unused(directory / name)
    for name in names_to_hold():
        remove_if_unused(cwd / name)
    with suppress(OSError):
        for path in git_directories.named_in_configuration(cwd / ".git", cwd)[1]:
            for place in (path, *path.parents):
                if place.is_relative_to(cwd):
                    remove_if_unused(place)


@dataclass
class _Protection:
    cwd: Path
    placeholders: Placeholders
    lifted: Sequence[str]
    branches: str | None = None
    found: ProtectedNames = field(default_factory=ProtectedNames)
    _mounted: set[str] = field(default_factory=set)

    def names(self) -> Iterator[str]:
        """Yield the protected names at the top of the directory, there or missing."""
        literal = names_to_hold()
        yield from literal
        with os.scandir(self.cwd) as entries:
            for _, entry in zip(range(MAX_ENTRIES), entries, strict=False):
                if entry.name not in literal and executed_by(
                    (entry.name,), is_directory=_is_directory(entry)
                ):
                    yield entry.name

    def entry(self, name: str) -> None:
        path = self.cwd / name
        if is_lifted((name,), self.lifted):
            return
        mode = _mode(path)
        if name == ".git" and mode is not None:
            self._git(path, mode)
        elif name in ("HEAD", COMMONDIR) and git_directories.is_repository(self.cwd):
            self._repository(self.cwd)
        else:
            self._read_only(path)
        for free in self.lifted:
            if Path(free).parts[:1] == (name,) and _mode(self.cwd / free) is not None:
                self._mount("--bind", self.cwd / free)

    def _git(self, path: Path, mode: int) -> None:
        if stat.S_ISDIR(mode) and not git_directories.is_placeholder_at(path):
            self._mount("--bind", path)  # else it could be moved away, with all that is protected in it
            self._repository(path)
            return
        worktree = git_directories.linked_worktree(self.cwd) if stat.S_ISREG(mode) else None
        if worktree is not None:
            if self.branches is not None:
                worktree = git_directories.of_branches(worktree, self.branches)
            self._mount("--ro-bind", worktree.common)
            for written in worktree.written:
                self._mount("--bind", written)
            for kept in worktree.kept:
                self._mount("--ro-bind", kept)
            self._configured(worktree.common)
            self._own_configuration(worktree)
        self._read_only(path)

    def _own_configuration(self, worktree: git_directories.LinkedWorktree) -> None:
        file = worktree.own / git_directories.WORKTREE_CONFIG
        with suppress(OSError):  # said already
            if file not in worktree.kept and git_directories.reads_worktree_config(worktree.common):
                self._open(file, _MISSING_CONFIGURATION)

    def _repository(self, directory: Path) -> None:
        for name in git_directories.READ_ONLY:
            self._read_only(directory / name, in_repository=True)
        for name in git_directories.READ_ONLY_IF_THERE:
            if _mode(directory / name) is not None:
                self._read_only(directory / name)
        self._configured(directory)

    def _configured(self, git_directory: Path) -> None:
        """Protect what the configuration of the repository leads to below the working directory."""
        try:
            files, hooks = git_directories.named_in_configuration(git_directory, self.cwd)
        except OSError as error:
            self._open(git_directory, f"its configuration is unknown ({error.strerror or error})")
            return
        for path in (*files, *hooks):
            if is_lifted(path.relative_to(self.cwd).parts, self.lifted):
                continue
            if path in files and _mode(path) is None:  # git could not work with a directory in its place
                self._open(path, _MISSING_CONFIGURATION)
            else:
                self._read_only_below(path)

    def _read_only_below(self, path: Path) -> None:
        """Protect a path, or the first part of it that is missing; the parts above stay where they are."""
        here = self.cwd
        for part in path.relative_to(self.cwd).parts:
            here /= part
            mode = _mode(here)
            if here == path or mode is None or not stat.S_ISDIR(mode):
                break
            self._mount("--bind", here)
        self._read_only(here)

    def _read_only(self, path: Path, *, in_repository: bool = False) -> None:
        mode = _mode(path)
        if mode is not None and stat.S_ISLNK(mode):
            self._open(path, "it is a symbolic link, which cannot be kept from being replaced")
            return
        try:
            if mode is None or git_directories.is_placeholder_at(path):
                self.placeholders.hold(path, in_repository=in_repository)
        except OSError as error:
            self._open(path, error.strerror or str(error))
            return
        self._mount("--ro-bind", path)

    def _mount(self, how: str, path: Path) -> None:
        if str(path) not in self._mounted:
            self._mounted.add(str(path))
            self.found.mounts.append((how, path))

    def _open(self, path: Path, why: str) -> None:
        shown = path.relative_to(self.cwd) if path.is_relative_to(self.cwd) else path
        self.found.open.append(f"{printable(str(shown))}: {why}")


def _mode(path: Path) -> int | None:
    try:
        return path.lstat().st_mode
    except OSError:
        return None


def _is_directory(entry: "os.DirEntry[str]") -> bool:
    return entry.is_dir(follow_symlinks=False)
