"""One writer at a time: the lock around a unit of work on files that several processes change."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from subagent_server.domain.errors import LockTimeout, StorageFailed

TIMEOUT_SECONDS = 10.0
_POLL_SECONDS = 0.005  # a contended hand-over takes about half of this


@contextmanager
def exclusive(path: Path, timeout: float = TIMEOUT_SECONDS) -> Iterator[None]:
    """Hold the lock file `path`, which is never removed. Blocks: call it off the event loop.

    Raises:
        LockTimeout: another process held it for `timeout` seconds.
        StorageFailed: the lock file cannot be opened (a read-only, foreign or missing directory).
    """
    if not path.parent.is_dir():  # filelock would make it, and with it half a run
        raise StorageFailed(path, "its directory does not exist")
    lock = FileLock(path, timeout=timeout, poll_interval=_POLL_SECONDS)
    try:
        lock.acquire()
    except Timeout as error:
        raise LockTimeout(path, timeout) from error
    except OSError as error:
        raise StorageFailed(path, error.strerror or str(error)) from error
    try:
        yield
    finally:
        lock.release()
