"""The directory that a run works in, and which of its files may be written."""

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from subagent_server.domain.errors import BadArgument, shorten
from subagent_server.domain.executed_files import GIT, Executed, executed_by, is_lifted
from subagent_server.host.inside import PathInside, Reached, inside


@dataclass(frozen=True)
class Workspace:
    """The directory a run works in, by its real path.

    Files in a `read_only` root, and files that other programs execute, can be read and not written.
    `lifted` are paths below the directory for which the author of the agent lifts that rule.
    """

    root: Path
    read_only: Sequence[Path] = ()
    lifted: Sequence[str] = ()

    @contextmanager
    def place(self, path: str, *, writing: bool = False, make_parents: bool = False) -> Iterator[PathInside]:
        """Find `path`, relative to the root or absolute inside it; it need not exist, its directory must.

        Raises:
            BadArgument: it leaves the root, is not to be written, or its directory is missing or is a file.
            OSError: the system refused.
        """
        check = self._check_writable if writing else None
        with inside(self.root, path, check=check, make_parents=make_parents) as place:
            yield place

    def _check_writable(self, reached: Reached) -> None:
        self._check_read_only(reached)
        by = executed_by(reached.parts, self.lifted, is_directory=reached.is_directory)
        by = by or self._in_repository(reached)
        if by is not None:
            raise BadArgument(
                f"{shorten(reached.asked)} is read-only here, because such files are executed by {by.by}: "
                "leave it as it is, and say in your answer what should stand in it."
            )

    def _check_read_only(self, reached: Reached) -> None:
        target = self.root.joinpath(*reached.parts)
        on_the_way = {(status.st_dev, status.st_ino) for status in map(os.fstat, reached.directories)}
        for root in self.read_only:
            covered = target.is_relative_to(os.path.realpath(root))
            with suppress(OSError):
                status = root.stat()
                covered = covered or (status.st_dev, status.st_ino) in on_the_way
            if covered:
                raise BadArgument(
                    f"{shorten(reached.asked)} is read-only here, because {shorten(str(root))} belongs to "
                    "the runs, agents or programs of the server: write somewhere else."
                )

    def _in_repository(self, reached: Reached) -> Executed | None:
        """Return git if a directory on the way is one of its own, whatever it is called."""
        for depth, directory in enumerate(reached.directories):
            if _is_repository(directory) and not is_lifted(reached.parts, self.lifted, below=depth - 1):
                return GIT
        return None


def _is_repository(directory: int) -> bool:
    """Whether git takes this directory itself for a repository (is_git_directory in its setup.c)."""

    def is_there(name: str) -> bool:
        try:
            os.stat(name, dir_fd=directory)
        except OSError:
            return False
        return True

    return is_there("HEAD") and (is_there("commondir") or (is_there("objects") and is_there("refs")))


def kind(mode: int) -> str:
    """Return the name for a kind of file, with its article."""
    if stat.S_ISDIR(mode):
        return "a directory"
    if stat.S_ISFIFO(mode):
        return "a FIFO"
    if stat.S_ISSOCK(mode):
        return "a socket"
    if stat.S_ISLNK(mode):
        return "a symbolic link"
    return "a device"
