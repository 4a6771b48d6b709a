"""What `subagent` itself has written into projects: not taken for the work of a run.

    with OwnWrites(state).writing(project / ".mcp.json"):
        ...

Each file is noted by device, inode and time of its last change, which no program can set. Whoever asks waits
for a writer that is just at it, so that no file is seen before it is noted.
"""

import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from subagent_server.domain.errors import LockTimeout, StorageFailed
from subagent_server.host.atomic import write_durably
from subagent_server.host.directory import Directory, Entry
from subagent_server.host.locks import exclusive

MOST_NOTES = 200
KEPT_SECONDS = 3_600.0
_PATIENCE_SECONDS = 1.0


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

    def include(self, status: os.stat_result) -> bool:
        """Whether the file of this status was written by `subagent`, and by nobody else since."""
        with self._notes() as notes:
            return notes is not None and any(note[1:] == _identity(status) for note in _read(notes))

    @contextmanager
    def _notes(self) -> Iterator[Entry | None]:
        """Give the file of notes, locked; None if it cannot be had."""
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
