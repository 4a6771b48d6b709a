"""Walking a directory tree on open directories: no link is followed, nothing leads out."""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_LEFT_OUT = ".git"


class Stop(Exception):
    """The search ends early; the text says why, for the model."""


@dataclass(frozen=True)
class Found:
    """What is no directory: its entry in an open directory, and its path from the top of the walk."""

    directory: int
    path: str
    entry: os.DirEntry[str]


class Tree:
    """The tree below an open directory, visited within bounds of entries and seconds."""

    def __init__(self, top: int, *, most_entries: int, seconds: float) -> None:
        self._top = top
        self._most = most_entries
        self._visited = 0
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds
        self.unreadable = 0

    def walk(self, enter: Callable[[str], bool]) -> Iterator[Found]:
        """Yield the files of each directory in the order of their names, then what is below it.

        A directory is entered where `enter` says so of its path; `.git` never is.

        Raises:
            Stop: a bound was reached.
        """
        todo = [""]
        while todo:
            prefix = todo.pop()
            try:
                directory = self._open(prefix)
            except OSError:
                self.unreadable += 1
                continue
            try:
                below = []
                entries, stop = self._entries(directory)
                for entry in entries:
                    path = f"{prefix}{entry.name}"
                    if not entry.is_dir(follow_symlinks=False):
                        yield Found(directory, path, entry)
                    elif entry.name != _LEFT_OUT and enter(path):
                        below.append(f"{path}/")
                todo += reversed(below)
                if stop is not None:
                    raise stop
            finally:
                os.close(directory)

    def check_time(self) -> None:
        """Stop where the time is over.

        Raises:
            Stop: it is.
        """
        if time.monotonic() > self._deadline:
            raise Stop(f"stopped after {self._seconds:g} s")

    def _entries(self, directory: int) -> tuple[list[os.DirEntry[str]], Stop | None]:
        """Return the entries in order, and why there may be more where a bound was reached."""
        self.check_time()
        found: list[os.DirEntry[str]] = []
        stop = None
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    self._count()
                    found.append(entry)
        except Stop as reached:
            stop = reached
        return sorted(found, key=lambda entry: entry.name), stop

    def _count(self) -> None:
        if self._visited >= self._most:
            raise Stop(f"stopped after visiting {self._most:,} entries")
        self._visited += 1
        if self._visited % 1000 == 0:
            self.check_time()

    def _open(self, path: str) -> int:
        directory = os.open(".", FLAGS | os.O_DIRECTORY, dir_fd=self._top)
        for name in filter(None, path.split("/")):
            try:
                inner = os.open(name, FLAGS | os.O_DIRECTORY, dir_fd=directory)
            finally:
                os.close(directory)
            directory = inner
        return directory
