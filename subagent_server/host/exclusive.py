"""One writer at a time: the lock around a unit of work on files that several processes change."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from filelock import FileLock, Timeout

from subagent_server.domain.errors import LockTimeout, StorageFailed
from subagent_server.host.directory import Entry
from subagent_server.host.locks import open_lock

TIMEOUT_SECONDS = 10.0
_POLL_SECONDS = 0.005  # a contended hand-over takes about half of this


@contextmanager
def exclusive(file: Entry, timeout: float = TIMEOUT_SECONDS) -> Iterator[None]:
    """Hold the lock file `file`, which is never removed. Blocks: call it off the event loop.

    Raises:
        LockTimeout: another process held the lock for `timeout` seconds.
        StorageFailed: the lock file cannot be opened (a read-only, foreign or missing directory).
    """
    try:
        os.close(open_lock(file))  # filelock opens by path: what stands there has been looked at by then
        below = f"/proc/self/fd/{file.directory.descriptor}/{file.name}"
        lock = FileLock(below, timeout=timeout, poll_interval=_POLL_SECONDS)
        lock.acquire()
    except Timeout as error:
        raise LockTimeout(file.path, timeout) from error
    except OSError as error:
        raise StorageFailed(file.path, error.strerror or str(error)) from error
    try:
        yield
    finally:
        lock.release()
