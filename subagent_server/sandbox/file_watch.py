"""Names that other programs execute and that come during a command: seen, moved to quarantine, and reported.

    with watch.command("the command") as came:
        ...
    came.remark                                    # for the agent

Just before and just after each command the literal names of the table are looked for (an `lstat` each) below
open directories: the working directory, and those above it up to the top of its repository. What was there
before is the person's and stays, and so does what comes while no command runs. This is detection and no wall:
whoever else writes such a name while a command runs loses it to the quarantine too, and restores it by
`subagent show RUN --restore`.
"""

import errno
import json
import os
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import NamedTuple

from subagent_server.run.confined_path import directory_below, names_below, open_real, printable, status_below
from subagent_server.run.durable import write_durably
from subagent_server.run.errors import LockTimeout, StorageFailed
from subagent_server.run.executed_files import (
    FIRST_OF_SEVERAL,
    executed_by,
    is_lifted,
    lies_above,
    literal_names,
    real_home,
)
from subagent_server.run.files import Directory, Entry, held_open
from subagent_server.run.locks import exclusive
from subagent_server.sandbox.git_files import git_settings, makes_repository, pointer
from subagent_server.sandbox.quarantine import Kept, Quarantine, Taken
from subagent_server.sandbox.readable import BoxRefused

# -- What `subagent` itself has written into projects: not taken for the work of a run.
#
#     with OwnWrites(state).writing(project / ".mcp.json"):
#         ...
#
# Each file is noted by device, inode and time of its last change, which no program can set. Whoever asks
# waits for a writer that is just at it, so that no file is seen before it is noted.


MOST_NOTES = 200
KEPT_SECONDS = 3_600.0
_PATIENCE_SECONDS = 10.0
"""Without the notes our own files are taken for those of a run. With 20 runs on two cores 1 s was short."""


@dataclass(frozen=True)
class OwnWrites:
    """The notes in our state directory. Without one, nothing is noted."""

    directory: Path | None

    @contextmanager
    def writing(self, path: Path) -> Iterator[None]:
        """Note `path`, and the directories above it that are missing, when the caller has made them."""
        made = [path, *(above for above in path.parents if not above.exists())]
        with self._notes() as notes:
            yield
            if notes is not None:
                kept = [*_read(notes), *_noted(made)]
                with suppress(StorageFailed):
                    write_durably(notes, json.dumps(kept[-MOST_NOTES:]).encode())

    def include(self, directory: int, name: str) -> bool:
        """Whether `name` below an open directory was written by `subagent`, and by nobody else since."""
        with self._notes() as notes:
            status = status_below(directory, name)  # after the wait: a writer has changed its directory, too
            known = [] if notes is None or status is None else _read(notes)
            return status is not None and any(note[1:] == _identity(status) for note in known)

    @contextmanager
    def _notes(self) -> Iterator[Entry | None]:
        """Yield the file of notes, locked; None if it cannot be had."""
        with ExitStack() as held:
            notes = None
            with suppress(OSError, StorageFailed, LockTimeout):
                if self.directory is not None:
                    self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                    directory = Directory(self.directory)
                    held.enter_context(exclusive(directory.entry("own-writes.lock"), _PATIENCE_SECONDS))
                    notes = directory.entry("own-writes.json")
            yield notes


def _identity(status: os.stat_result) -> list[int]:
    return [status.st_dev, status.st_ino, status.st_ctime_ns]


def _noted(paths: list[Path]) -> Iterator[list[int]]:
    for path in paths:
        with suppress(OSError):
            yield [int(time.time()), *_identity(path.lstat())]


def _read(notes: Entry) -> list[list[int]]:
    """Return the notes that are not too old; of a damaged file none."""
    with suppress(OSError, ValueError, TypeError, IndexError):
        return [note for note in json.loads(notes.read(1 << 20)) if time.time() - note[0] < KEPT_SECONDS]
    return []


MOST_PARENTS = 16
_MOST_NAMES = 10_000
_MOST_MARK_BYTES = 64 << 10
_ROUNDS = 3
"""How often a name is moved that comes back at once."""
_REPOSITORY = ("HEAD", "commondir", "objects", "refs", "config", "hooks")

Name = tuple[int, str]
"""A directory of a watch, by its number, and a path below it."""


class NameWatch:
    """The names in `cwd`, a real path, and above it up to the top of its repository.

    `lifted` are paths below `cwd` that the author of the agent allows. Our `own` writes stay.
    `configured` returns further names in `cwd`: those that its git would execute, if they came.
    """

    def __init__(
        self,
        cwd: Path,
        quarantine: Quarantine,
        own: OwnWrites,
        lifted: Sequence[str] = (),
        configured: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self._quarantine = quarantine
        self.configured = configured
        self._own = own
        self._lifted = lifted
        self._cwd = cwd
        self._opening = threading.Lock()
        self._directories: list[tuple[Path, int, list[str]]] = []

    def _open(self) -> None:
        """Open the directories when the first command begins: most workers never need them."""
        with self._opening:
            for path in () if self._directories else _up_to_top(self._cwd):
                names = literal_names(path)
                if path == self._cwd:
                    names = [name for name in (*names, *self.configured()) if not self._is_free(name)]
                try:
                    self._directories.append((path, open_real(path), names))
                except OSError:  # that of another user: nobody here can write in it
                    break

    def close(self) -> None:
        """Close the directories."""
        while self._directories:
            os.close(self._directories.pop()[1])

    def look(self) -> frozenset[Name]:
        """Return the names that are there now."""
        self._open()
        found: set[Name] = set()
        for number, (_, directory, names) in enumerate(self._directories):
            found.update((number, there) for name in names if (there := _there(directory, name)) is not None)
            parts = {name for name in _REPOSITORY if _there(directory, name) is not None}
            if makes_repository(parts):
                found.update((number, name) for name in parts)
        return frozenset(found)

    def in_home(self, names: Collection[str]) -> frozenset[Name]:
        """Return these names of the home directory, if that is watched."""
        home = real_home()
        return frozenset(
            (number, name)
            for number, (path, *_) in enumerate(self._directories)
            for name in names
            if path == home
        )

    def take(self, before: frozenset[Name], during: str) -> Taken:
        """Move away what has come since a look, and return what that was."""
        moved: list[Kept] = []
        stuck: list[str] = []
        for number, name in sorted(self.look() - before):
            path, directory, _ = self._directories[number]
            for inner in self._unfree(number, directory, name):
                try:
                    self._move_away(directory, inner, path, during, moved)
                except OSError as error:
                    stuck.append(f"{printable(inner)} ({error.strerror or error})")
        return Taken(moved, stuck)

    def _move_away(self, directory: int, name: str, path: Path, during: str, moved: list[Kept]) -> None:
        for _ in range(_ROUNDS):
            if status_below(directory, name) is None or self._own.include(directory, name):
                return
            kept = self._quarantine.take(directory, name, path / name, during)
            if kept is not None:
                moved.append(kept)
        if status_below(directory, name) is not None:
            raise OSError(errno.EBUSY, "it comes back at once, or is too large")

    def _is_free(self, name: str) -> bool:
        return is_lifted(PurePath(name).parts, self._lifted)

    def _unfree(self, number: int, directory: int, name: str) -> list[str]:
        """Return `name`; or, if something in that directory is free, the names in it that are not."""
        if number or not lies_above(PurePath(name).parts, self._lifted):
            return [name]
        with suppress(OSError):
            inside = [f"{name}/{each}" for each in names_below(directory, name, _MOST_NAMES)]
            kept = [each for each in inside if not self._is_free(each)]
            return [path for each in kept for path in self._unfree(number, directory, each)]
        return [name]


@dataclass
class Came:
    """What came during a command. `remark` is for the agent, and empty if that was nothing."""

    remark: str = ""


@dataclass
class CommandWatch:
    """Watches the names around the commands of one run, from any thread.

    `tell` gets what came, and returns the remark for the agent. `mark` holds what was there before as long
    as a command runs: so whoever finds the worker killed can compare. `masked` takes secrets from a text.
    """

    names: NameWatch
    mark: Entry
    tell: Callable[[Taken], str]
    masked: Callable[[str], str]
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _running: int = 0

    @contextmanager
    def command(self, what: str, kept: Collection[str] = ()) -> Iterator[Came]:
        """Watch one command; `what` is its text for people. What is `kept` in the home directory may come."""
        before, what = self.names.look() | self.names.in_home(kept), self.masked(what)
        came = Came()
        self._write_mark(before, what, +1)
        try:
            yield came
        finally:
            with self._lock:
                taken = self.names.take(before, what)
            if taken:
                came.remark = self.tell(taken)
            self._write_mark(before, what, -1)

    def _write_mark(self, before: frozenset[Name], what: str, change: int) -> None:
        """Mark that a command runs, or that none does. A kill loses no write: nothing is synced.

        The first line counts. The file is not cut: some file systems write it out to the disk then, 2 ms.
        """
        with self._lock, suppress(OSError):
            self._running += change
            if (self._running, change) not in ((1, 1), (0, -1)):
                return  # the first of several has seen most
            facts = {"during": what[:200], "names": sorted(before), "configured": self.names.configured()}
            record = json.dumps(facts) if self._running else ""
            with held_open(self.mark.open(os.O_WRONLY | os.O_CREAT)) as descriptor:
                os.pwrite(descriptor, f"{record}\n".encode(), 0)


def watching(
    watch: CommandWatch | None, what: str, kept: Collection[str] = ()
) -> AbstractContextManager[Came]:
    """Watch one command if there is a watch."""
    return nullcontext(Came()) if watch is None else watch.command(what, kept)


def read_mark(mark: Entry) -> tuple[frozenset[Name], str, tuple[str, ...]] | None:
    """Return what was there before the command that a killed worker left unfinished, its text, and which
    further names were watched; None without one.
    """
    with suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
        record = json.loads(mark.read(_MOST_MARK_BYTES).partition(b"\n")[0])
        names = frozenset((int(number), str(name)) for number, name in record["names"])
        return names, str(record["during"]), tuple(map(str, record.get("configured", ())))
    return None


def _up_to_top(cwd: Path) -> list[Path]:
    """Return `cwd` and the directories above it up to the top of its repository; without one, `cwd` alone."""
    above = [cwd, *cwd.parents][:MOST_PARENTS]
    tops = [number for number, path in enumerate(above) if os.path.lexists(path / ".git")]
    return above[: tops[0] + 1] if tops else [cwd]


def _there(directory: int, name: str) -> str | None:
    """Return a path below an open directory, or the link that counts for all behind it; None if missing."""
    first, slash, rest = name.partition("/")
    if not os.access(first, os.F_OK, dir_fd=directory, follow_symlinks=False):  # an exception costs double
        return None
    try:
        if not slash or stat.S_ISLNK(os.stat(first, dir_fd=directory, follow_symlinks=False).st_mode):
            return first
        with directory_below(directory, first) as inner:
            found = _there(inner, rest)
    except OSError:
        return None
    return None if found is None else f"{first}/{found}"


# -- Compare the files that can run code in a directory before and after a run: what nothing else has
# prevented.
#
#     before = look(cwd, own_hooks(cwd))
#     ...
#     changes(before, look(cwd, before.hooks), since)
#
# A look sees the names that other programs execute, and the repositories, down to `MAX_DEPTH` directories
# below the top; it follows no link, and ends at a bound.


MAX_DEPTH = 10
MAX_NAMES, MAX_NAMES_WITH_LAST = 20_000, 5_000
MAX_SECONDS = 0.5
_LAST = frozenset(("node_modules", ".venv", "venv", "vendor", "target", ".tox", ".nox", "__pycache__"))
"""Directories of what was downloaded or made are looked at after all others."""
_OF_GIT = (
    *("config", "config.worktree", "commondir"),
    *("rebase-merge/git-rebase-todo", "objects/info/alternates"),
)
"""The files by which git executes programs, or reads objects elsewhere, which a box then shows."""


class Fingerprint(NamedTuple):
    """Attributes of a file that each write, rename or change of mode alters; of a directory, its identity."""

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

    def without(self, path: str) -> "Seen":
        """Return the same without one path."""
        kept = {name: print_ for name, print_ in self.fingerprints.items() if name != path}
        return replace(self, fingerprints=kept)


def look(
    cwd: Path, hooks: tuple[str, ...] = (), *, leave_out: Callable[[Path], bool] = lambda _: False
) -> Seen:
    """Return the files that can run code in a directory, by its real path; unreadable ones are left out.

    `hooks` are other paths than usual, by `own_hooks` from before the run: files which the run has written
    do not decide where to look. A directory that is to be left out is not looked at.
    """
    walk = _Look(cwd, leave_out, hooks)
    with suppress(OSError), held_open(open_real(cwd)) as walk.top:
        walk.run()
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
        above = found[-1] if found and found[-1].endswith("/") else None
        # in this order, what lies in a directory comes right behind it
        if is_new and not (above is not None and path.startswith(above)):
            found.append(path)
    return found


def new_repositories(before: Seen, after: Seen) -> list[str]:
    """Return the repositories that came between two looks, if that is sure: none if the first was bounded."""
    return sorted(after.repositories - before.repositories) if before.whole else []


def own_hooks(cwd: Path) -> tuple[str, ...]:
    """Return the files and hooks below the directory that its configuration of git names. Runs git.

    Nothing if git cannot read that: then there is no box, and none is promised.
    """
    try:
        executed = git_settings(os.environ, cwd).executed
    except BoxRefused:
        return ()
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
            inner = _joined(path, name)
            if name == ".git" and is_directory:
                self._repository(inner)
            elif executed_by((*above, name), is_directory=True) is not None:
                (self._tree if is_directory else self._see)(inner)
                if name == ".git":
                    self._repository_behind(inner)
            elif is_directory:
                ordinary.append(inner)
            elif name in FIRST_OF_SEVERAL and (self.cwd / inner).is_symlink():
                self._see(inner)  # a link counts for all behind it
        return ordinary

    def _repository_behind(self, path: str) -> None:
        """Look at the repository to which a `.git` leads that is no directory: it may be anywhere below."""
        there = Path(os.path.realpath(self.cwd / path))
        if (named := pointer(there, "gitdir: ")) is not None:
            there = Path(os.path.realpath((self.cwd / path).parent / named))
        for each in (there, there.parent.parent):  # a linked worktree has the configuration of that one
            if self.cwd in each.parents:
                inner = str(each.relative_to(self.cwd))
                if makes_repository(set(self._entries(inner))):
                    self._repository(inner)

    def _repository(self, path: str) -> None:
        self.repositories.add(path)
        self._see(path, is_directory=True)
        for name in _OF_GIT:
            self._see(_joined(path, name))
        for name in self._entries(_joined(path, "hooks")):
            if not name.endswith(".sample"):
                self._see(_joined(path, f"hooks/{name}"))
        for name, is_directory in self._entries(_joined(path, "modules")).items():
            if is_directory and self._names < MAX_NAMES:
                self._repository(_joined(path, f"modules/{name}"))

    def _tree(self, path: str) -> None:
        """Look at a directory of which everything counts; it may be deeper than a program can recurse."""
        waiting = [path]
        while waiting:
            path = waiting.pop()
            self._see(path, is_directory=True)
            for name, is_directory in self._entries(path).items():
                if is_directory:
                    waiting.append(_joined(path, name))
                else:
                    self._see(_joined(path, name))

    def _entries(self, path: str) -> dict[str, bool]:
        """Return the names in a directory, and whether each is a directory; nothing beyond a bound.

        A directory that cannot be listed may hide a repository in which git works, so it is seen itself, and
        asked for the names by which git finds one.
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
            for name in (".git", *_REPOSITORY):
                if (status := status_below(self.top, _joined(path, name))) is not None:
                    found[name] = stat.S_ISDIR(status.st_mode)
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
