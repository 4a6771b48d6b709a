"""One writer at a time: the lock around a unit of work on files that several processes change."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from subagent_server.domain.errors import LockTimeout, StorageFailed
from subagent_server.host import locks
from subagent_server.host.directory import Entry

TIMEOUT_SECONDS = 10.0
_POLL_SECONDS = 0.005  # a contended hand-over takes about half of this


@contextmanager
def exclusive(file: Entry, timeout: float = TIMEOUT_SECONDS) -> Iterator[None]:
    """Hold the lock file `file`, which is never removed. Blocks: call it off the event loop.

    The lock is `flock`, as that of the library `filelock`: a program that takes it by the library is kept
    out. The library itself is not used here: it hooks every fork, which costs each run more than a MiB, and
    a fork may have to wait for another thread that changes a lock, or be ended because of it.

    Raises:
        LockTimeout: another process held the lock for `timeout` seconds.
        StorageFailed: the lock file cannot be opened (a read-only, foreign or missing directory) or locked.
    """
    try:
        descriptor = locks.open_lock(file)
    except OSError as error:
        raise StorageFailed(file.path, error.strerror or str(error)) from error
    try:
        _take(descriptor, file, timeout)
        yield
    finally:
        locks.give_back(descriptor)


def _take(descriptor: int, file: Entry, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    try:
        while not locks.try_lock(descriptor):
            if time.monotonic() >= deadline:
                raise LockTimeout(file.path, timeout)
            threading.Event().wait(_POLL_SECONDS)
    except OSError as error:
        raise StorageFailed(file.path, error.strerror or str(error)) from error
