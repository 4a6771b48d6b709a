"""Names that other programs execute and that come during a command: seen, moved to quarantine, and said.

    with watch.command("the command") as came:
        ...
    came.remark                                    # for the agent

Just before and just after each command the literal names of the table are looked for (an `lstat` each) below
open directories: the working directory, and those above it up to the top of its repository. What was there
before is the person's and stays, and so does what comes while no command runs. This is detection and no wall:
who else writes such a name while a command runs loses it to the quarantine too, and gets it back by
`subagent show RUN --restore`.
"""

import errno
import json
import os
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from subagent_server.domain.executed_files import is_lifted, lies_above, literal_names
from subagent_server.host.directory import Entry
from subagent_server.host.inside import directory_below, names_below, open_real, printable, status_below
from subagent_server.sandbox.git_directories import makes_repository
from subagent_server.sandbox.own_writes import OwnWrites
from subagent_server.sandbox.quarantine import Kept, Quarantine

MOST_PARENTS = 16
_MOST_NAMES = 10_000
_MOST_MARK_BYTES = 64 << 10
_ROUNDS = 3
"""How often a name is moved that comes back at once."""
_REPOSITORY = ("HEAD", "commondir", "objects", "refs", "config", "hooks")

Name = tuple[int, str]
"""A directory of a watch, by its number, and a path below it."""


@dataclass(frozen=True)
class Taken:
    """The names that came during a command: moved to quarantine, or, with the reason, not."""

    moved: Sequence[Kept] = ()
    stuck: Sequence[str] = ()

    def __bool__(self) -> bool:
        return bool(self.moved or self.stuck)


class NameWatch:
    """The names in `cwd`, a real path, and above it up to the top of its repository.

    `lifted` are paths below `cwd` that the author of the agent gives free. Our `own` writes stay.
    """

    def __init__(self, cwd: Path, quarantine: Quarantine, own: OwnWrites, lifted: Sequence[str] = ()) -> None:
        self._quarantine = quarantine
        self._own = own
        self._lifted = lifted
        self._cwd = cwd
        self._opening = threading.Lock()
        self._directories: list[tuple[Path, int, list[str]]] = []

    def _open(self) -> None:
        """Open the directories when the first command begins: most workers hold them for nothing else."""
        home = os.path.realpath(os.path.expanduser("~"))  # noqa: PTH111 - not every user has a home
        with self._opening:
            for path in () if self._directories else _up_to_top(self._cwd):
                literal = literal_names(home=str(path) == home)
                names = [name for name in literal if path != self._cwd or not self._is_free(name)]
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

    def take(self, before: frozenset[Name], during: str) -> Taken:
        """Move away what has come since a look, and return what that was."""
        moved: list[Kept] = []
        stuck: list[str] = []
        for number, name in sorted(self.look() - before):
            path, directory, _ = self._directories[number]
            for place in self._unfree(number, directory, name):
                try:
                    self._move_away(directory, place, path, during, moved)
                except OSError as error:
                    stuck.append(f"{printable(place)} ({error.strerror or error})")
        return Taken(moved, stuck)

    def _move_away(self, directory: int, name: str, path: Path, during: str, moved: list[Kept]) -> None:
        for _ in range(_ROUNDS):
            status = status_below(directory, name)
            if status is None or self._own.include(status):
                return
            kept = self._quarantine.take(directory, name, path / name, during)
            if kept is not None:
                moved.append(kept)
        if status_below(directory, name) is not None:
            raise OSError(errno.EBUSY, "it comes back at once")

    def _is_free(self, name: str) -> bool:
        return is_lifted(PurePath(name).parts, self._lifted)

    def _unfree(self, number: int, directory: int, name: str) -> list[str]:
        """Return `name`; or, if something in that directory is free, the names in it that are not."""
        if number or not lies_above(PurePath(name).parts, self._lifted):
            return [name]
        with suppress(OSError):
            inside = [f"{name}/{each}" for each in names_below(directory, name, _MOST_NAMES)]
            kept = [each for each in inside if not self._is_free(each)]
            return [place for each in kept for place in self._unfree(number, directory, each)]
        return [name]


@dataclass
class Came:
    """What came during a command. `remark` is for the agent, and empty if that was nothing."""

    remark: str = ""


@dataclass
class CommandWatch:
    """Watches the names around the commands of one run, from any thread.

    `tell` hears what came, and returns the remark for the agent. `mark` holds what was there before as long
    as a command runs: so whoever finds the worker killed can compare. `masked` takes secrets from a text.
    """

    names: NameWatch
    mark: Entry
    tell: Callable[[Taken], str]
    masked: Callable[[str], str]
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _running: int = 0

    @contextmanager
    def command(self, what: str) -> Iterator[Came]:
        """Watch one command; `what` is its text for people."""
        before, what = self.names.look(), self.masked(what)
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
            record = json.dumps({"during": what[:200], "names": sorted(before)}) if self._running else ""
            descriptor = self.mark.open(os.O_WRONLY | os.O_CREAT)
            try:
                os.pwrite(descriptor, f"{record}\n".encode(), 0)
            finally:
                os.close(descriptor)


@contextmanager
def watching(watch: CommandWatch | None, what: str) -> Iterator[Came]:
    """Watch one command if there is a watch."""
    if watch is None:
        yield Came()
    else:
        with watch.command(what) as came:
            yield came


def read_mark(mark: Entry) -> tuple[frozenset[Name], str] | None:
    """Return what was there before the command that a killed worker left unfinished; None without one."""
    with suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
        record = json.loads(mark.read(_MOST_MARK_BYTES).partition(b"\n")[0])
        return frozenset((int(number), str(name)) for number, name in record["names"]), str(record["during"])
    return None


def _up_to_top(cwd: Path) -> list[Path]:
    """Return `cwd` and the directories above it up to the top of its repository; without one, `cwd` alone."""
    above = [cwd, *cwd.parents][:MOST_PARENTS]
    tops = [number for number, path in enumerate(above) if os.path.lexists(path / ".git")]
    return above[: tops[0] + 1] if tops else [cwd]


def _there(directory: int, name: str) -> str | None:
    """Return a path below an open directory, or the link that stands for all behind it; None if missing."""
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
