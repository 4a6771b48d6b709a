"""The state of one run, for who looks at it again and again: a file that is as it was is not read again."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from subagent_server.domain.records import RunMeta
from subagent_server.store.runs import RunStore
from subagent_server.store.stored import Extent

TRUSTED_SECONDS = 30.0
"""For so long a state is believed without being read, whatever its file looks like: clocks are set back, and
file systems are shared that tell late of changes."""


@dataclass(frozen=True)
class _Seen:
    """A state, what its file was like before it was read, and when that was, in seconds."""

    meta: RunMeta
    file: tuple[Extent, int]
    at: float


class LastState:
    """Reads the state of a run where its file has changed since the last time. Any thread may ask.

    A change is a new file under the name (SPEC section 4), whose inode may be that of the one before the
    last. So a file is known by inode, size and time together, and one that is younger than a tick of the
    file system's clock, in which another change could hide, is read again.
    """

    def __init__(self, store: RunStore, run_id: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._run_id = run_id
        self._clock = clock
        self._path = store.paths.run(run_id).meta
        self._seen: _Seen | None = None

    def read(self) -> RunMeta:
        """Return the state of the run. Raises as `RunStore.read` does."""
        began, moment = time.time_ns(), self._clock()
        try:
            status = self._path.stat()
        except OSError:
            return self._store.read(self._run_id)  # which says what is wrong
        extent = Extent(status.st_dev, status.st_ino, status.st_mtime_ns)
        file, seen = (extent, status.st_size), self._seen
        if seen is not None and seen.file == file and moment - seen.at < TRUSTED_SECONDS:
            return seen.meta
        meta = self._store.read(self._run_id)
        self._seen = _Seen(meta, file, moment) if extent.is_settled(began) else None
        return meta
