"""Files that other programs would execute are moved out of a run's working directory, and can be restored.

    quarantine = Quarantine(run_directory.below("quarantine"))
    kept = quarantine.take(directory, ".mcp.json", path, "the command")
    quarantine.give_back(kept)

A program may write at the same time. So all work is by descriptor: no link is followed, and nothing is opened
that could block. A move is bounded: if the runs root is on another file system, it is a copy.
"""

import ctypes
import errno
import json
import os
import secrets
import stat
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath

from subagent_server.run.confined_path import directory_below, names_below, open_real, printable, status_below
from subagent_server.run.files import Directory, held_open, opened_writable
from subagent_server.run.processes import now
from subagent_server.run.states import timestamp

MOST_KEPT = 200
MOST_BYTES, MOST_NAMES, MOST_DEPTH, MOST_SECONDS = 64 << 20, 10_000, 40, 5.0
"""Of one move; bytes count if they have to be copied."""
_MOST_CHARACTERS = 200
"""Of the command during which it came."""
_MOVED, _RECORD = "moved", "record.json"
"""What is moved gets a name that nothing executes."""
_RENAME_NOREPLACE = 1
_SAFE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Kept:
    """One thing in quarantine. `path` is where it was, by its real path; `during` the command meanwhile."""

    number: str
    path: str
    at: str
    during: str

    def shown(self, cwd: Path) -> str:
        """Return the path relative to a working directory, if it lay there, for people and models."""
        path = PurePath(self.path)
        return printable(str(path.relative_to(cwd) if path.is_relative_to(cwd) else path))


@dataclass(frozen=True)
class Taken:
    """The names that came during a command: moved to quarantine, or, with the reason, not."""

    moved: Sequence[Kept] = ()
    stuck: Sequence[str] = ()

    def __bool__(self) -> bool:
        return bool(self.moved or self.stuck)


@dataclass(frozen=True)
class Quarantine:
    """The directory `quarantine/` of a run, with `001/moved` and `001/record.json`."""

    directory: Directory

    def take(self, directory: int, name: str, path: Path, during: str) -> Kept | None:
        """Move `name` below an open directory here; None if it is gone. `path` is its real path.

        Raises:
            OSError: it cannot be moved; it is where it was.
        """
        slot = self._new_slot()
        kept = Kept(slot.path.name, str(path), timestamp(now()), during[:_MOST_CHARACTERS])
        record = {"path": kept.path, "at": kept.at, "during": kept.during}
        above, _, last = name.rpartition("/")
        try:
            with slot.entry(_RECORD).appender() as file:  # first: nothing is here of unknown origin
                file.write(json.dumps(record).encode())
            with directory_below(directory, above) as opened:
                _Bounds().move(opened, last, slot.writable(), _MOVED)
        except BaseException as error:
            self._drop(slot)
            if isinstance(error, FileNotFoundError):
                return None
            raise
        return kept

    def kept(self) -> list[Kept]:
        """Return what is here, the oldest first. What cannot be read is left out."""
        try:
            names = sorted(self.directory.names())[:MOST_KEPT]
        except OSError:
            return []
        return [kept for kept in map(self._read, names) if kept is not None]

    def give_back(self, kept: Kept) -> None:
        """Move it to where it was.

        Raises:
            FileExistsError: something else is there.
            OSError: its directory is gone or was replaced by a link, or the system refused.
        """
        slot, path = self.directory.below(kept.number), Path(kept.path)
        with held_open(open_real(path.parent)) as directory:
            try:
                rename_new(slot.writable(), _MOVED, directory, path.name)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                _Bounds().move(slot.writable(), _MOVED, directory, path.name)
        self._drop(slot)

    def _new_slot(self) -> Directory:
        self.directory.make()
        used = [int(name) for name in self.directory.names() if name.isdecimal()]
        if len(used) >= MOST_KEPT:
            raise OSError(errno.ENOSPC, f"the quarantine holds {MOST_KEPT} already")
        slot = self.directory.below(f"{max(used, default=0) + 1:03}")
        slot.make_new()
        return slot

    def _drop(self, slot: Directory) -> None:
        with suppress(OSError):
            slot.entry(_RECORD).unlink()
            os.rmdir(slot.path.name, dir_fd=self.directory.writable())

    def _read(self, number: str) -> Kept | None:
        slot = self.directory.below(number)
        with suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
            if slot.entry(_MOVED).stat():
                record = json.loads(slot.entry(_RECORD).read(64 << 10))
                return Kept(number, *(str(record[key]) for key in ("path", "at", "during")))
        return None


def rename_new(source: int, name: str, target: int, new_name: str) -> None:
    """Rename a file between two open directories; what has the new name stays. Raises OSError."""
    if _LIBC.renameat2(source, os.fsencode(name), target, os.fsencode(new_name), _RENAME_NOREPLACE) == 0:
        return
    number = ctypes.get_errno()
    if number not in (errno.EINVAL, errno.ENOSYS):
        raise OSError(number, os.strerror(number), name)
    if status_below(target, new_name) is not None:  # NFS and its kind cannot do both in one step
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new_name)
    os.rename(name, new_name, src_dir_fd=source, dst_dir_fd=target)


class _Bounds:
    """The bounds of one move."""

    def __init__(self) -> None:
        self._bytes, self._names = MOST_BYTES, MOST_NAMES
        self._deadline = time.monotonic() + MOST_SECONDS

    def _spend(self, names: int, size: int, depth: int) -> None:
        self._names -= names
        self._bytes -= size
        if min(self._names, self._bytes, MOST_DEPTH - depth) < 0 or time.monotonic() > self._deadline:
            raise OSError(errno.EFBIG, "it is too large to be moved")

    def move(self, source: int, name: str, target: int, new_name: str, depth: int = 0) -> None:
        """Move a name between open directories, over nothing that is there; a directory as a new one.

        A process of a box may work in the old one: if that moved, `..` would lead it into the run. What is
        too much for the bounds, or cannot be moved, stays in the old one.

        Raises:
            FileExistsError: the new name is there.
            OSError: the system refused.
        """
        self._spend(1, 0, depth)
        mode = os.stat(name, dir_fd=source, follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode):
            os.mkdir(new_name, 0o700, dir_fd=target)
            with (
                held_open(opened_writable(source, name)) as here,
                directory_below(target, new_name, os.O_RDONLY) as there,
            ):
                for each in names_below(here, ".", MOST_NAMES):
                    with suppress(OSError):
                        self.move(here, each, there, each, depth + 1)
            with suppress(OSError):
                os.rmdir(name, dir_fd=source)
            return
        try:  # not a rename: it may be a directory meanwhile, which gets no second name
            os.link(name, new_name, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)
            is_of_run = stat.S_ISREG(mode)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EPERM):
                raise
            self._copy(source, name, target, new_name, mode, depth)
            is_of_run = False
        os.unlink(name, dir_fd=source)
        if is_of_run:
            # By its other name a run could still write what a person has looked at and restored, and so by
            # a descriptor, of which `linkat` makes a name after this (seen with one of /proc/self/fd).
            copy = f".{secrets.token_hex(8)}"  # a name that the run has not used for another one
            with suppress(OSError):
                self._copy_file(target, new_name, target, copy, depth)
                os.rename(copy, new_name, src_dir_fd=target, dst_dir_fd=target)

    def _copy(self, source: int, name: str, target: int, new_name: str, mode: int, depth: int) -> None:
        """Copy a file, or a link as a link; below the top, anything else is left out."""
        if stat.S_ISLNK(mode):
            os.symlink(os.readlink(name, dir_fd=source), new_name, dir_fd=target)
        elif stat.S_ISREG(mode):
            self._copy_file(source, name, target, new_name, depth)
        elif depth == 0:
            raise OSError(errno.EINVAL, "it is a FIFO, a socket or a device")

    def _copy_file(self, source: int, name: str, target: int, new_name: str, depth: int) -> None:
        with held_open(os.open(name, os.O_RDONLY | _SAFE, dir_fd=source)) as old:
            mode = os.fstat(old).st_mode
            if not stat.S_ISREG(mode):
                raise OSError(errno.EINVAL, "it was replaced meanwhile")
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE
            with os.fdopen(os.open(new_name, flags, 0o600 | (mode & 0o155), dir_fd=target), "wb") as new:
                try:
                    while part := os.read(old, 1 << 20):
                        self._spend(0, len(part), depth)
                        new.write(part)
                except OSError:
                    os.unlink(new_name, dir_fd=target)
                    raise
