"""The state of a run, for a reader that looks again and again: an unchanged file is not read again."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from subagent_server.domain.records import RunMeta
from subagent_server.store import run_files
from subagent_server.store.runs import RunStore
from subagent_server.store.stored import Extent

TRUSTED_SECONDS = 30.0
"""For so long a state is believed without being read, whatever its file looks like: clocks are set back, and
file systems are shared that tell late of changes."""


@dataclass(frozen=True)
class _Seen:
    """A state, its bytes, and how long the state is believed while its file is like `file`."""

    meta: RunMeta
    raw: bytes
    file: tuple[Extent, int] | None
    until: float


class LastState:
    """Reads the state of a run if its file has changed since the last read. Any thread may ask.

    A change is a new file under the name (SPEC section 4), whose inode may be reused from the file before the
    last. So a file is known by inode, size and time together. A file younger than a tick of the file system's
    clock, in which another change could hide, is read each time.
    """

    def __init__(self, store: RunStore, run_id: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._run = store.paths.run(run_id)
        self._seen: _Seen | None = None

    def read(self) -> RunMeta:
        """Return the state of the run. Raises as `RunStore.read` does."""
        began, moment, seen, file = time.time_ns(), self._clock(), self._seen, self._file()
        if seen is not None and file is not None and file == seen.file and moment < seen.until:
            return seen.meta
        raw = run_files.read_raw_state(self._run)
        unchanged = seen is not None and seen.raw == raw
        meta = seen.meta if seen is not None and unchanged else run_files.decode_state(self._run, raw)
        settled = file is not None and file[0].is_settled(began)
        self._seen = _Seen(meta, raw, file if settled else None, moment + TRUSTED_SECONDS)
        return meta

    def _file(self) -> tuple[Extent, int] | None:
        try:
            status = self._run.meta.stat()
        except OSError:
            return None  # reading it says what is wrong
        return Extent(status.st_dev, status.st_ino, status.st_mtime_ns), status.st_size
