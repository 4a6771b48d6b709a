"""Two kinds of locks: `filelock` around a unit of work, and plain `flock` on descriptors that are handed on.

A plain lock lives as long as any copy of its descriptor. A process handing a lock over only closes its own
copy and never unlocks, because unlocking a copy unlocks them all; `FileLock` unlocks when it is released or
collected, so it cannot be handed over. The shim imports this module: at its top is the standard library only.
"""

import errno
import fcntl
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from subagent_server.run.errors import LockTimeout, StorageFailed
from subagent_server.run.files import Entry, held_open

TIMEOUT_SECONDS = 10.0
_POLL_SECONDS = 0.005  # a contended hand-over takes about half of this
_LONGEST_POLL_SECONDS = 0.1
_POLLS = 20  # after so many looks a waiter looks half as often
_MAY_ONLY_READ = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


@contextmanager
def exclusive(file: Entry, timeout: float = TIMEOUT_SECONDS) -> Iterator[None]:
    """Hold the lock file `file`, which is never removed. Blocks: call it off the event loop.

    Raises:
        LockTimeout: another process held the lock for `timeout` seconds.
        StorageFailed: the lock file cannot be opened (a read-only, foreign or missing directory) or locked.
    """
    # Not at the top: a shim runs without installed packages, and its locks are all handed on.
    from filelock import FileLock, Timeout

    try:
        # FileLock opens by path: owner and kind of the file are checked before that.
        os.close(open_lock(file))
        below = f"/proc/self/fd/{file.directory.descriptor}/{file.name}"
        # A file system without flock is a storage failure: a lock of another kind would keep nobody else out.
        lock = FileLock(below, fallback_to_soft=False)
        # A hundred waiters that look every 5 ms, each for some 0.1 ms, leave the holder no processor.
        poll, left = _POLL_SECONDS, timeout
        while not lock.is_locked:
            turn = min(_POLLS * poll, left)
            try:
                lock.acquire(timeout=turn, poll_interval=poll)
            except Timeout:
                left -= turn
                if left <= 0:
                    raise
                poll = min(2 * poll, _LONGEST_POLL_SECONDS)
    except Timeout as error:
        raise LockTimeout(file.path, timeout) from error
    except OSError as error:
        raise StorageFailed(file.path, error.strerror or str(error)) from error
    try:
        yield
    finally:
        lock.release()


def open_lock(file: Entry) -> int:
    """Open (and make) a lock file and return the descriptor, not yet locked."""
    return file.open(os.O_RDWR | os.O_CREAT)


def try_lock(descriptor: int) -> bool:
    """Take the lock exclusively if the lock is free, without waiting for a holder; probes hold nothing."""
    while not _try(descriptor, fcntl.LOCK_EX):
        if not _try(descriptor, fcntl.LOCK_SH):
            return False
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # only probes hold it meanwhile, for a moment each
    return True


def lock(descriptor: int) -> None:
    """Take the lock exclusively; blocks while another holds it, if only for the moment of a probe."""
    fcntl.flock(descriptor, fcntl.LOCK_EX)


def take(file: Entry) -> int | None:
    """Return a descriptor that holds the lock of `file`, or None if another process holds it."""
    descriptor, is_taken = open_lock(file), False
    try:
        is_taken = try_lock(descriptor)  # raises where there are no locks, as on some file servers
    finally:
        if not is_taken:
            os.close(descriptor)
    return descriptor if is_taken else None


def is_held(file: Entry) -> bool:
    """Whether a process holds the lock of `file` exclusively; a missing file is not held.

    The probe is a shared lock on a descriptor of its own, so that probes never see each other as holders. If
    nothing may be changed in the directory, nothing is probed: our processes hold no lock there.
    """
    try:
        if file.directory.descriptor >= 0 and file.directory.forbidden is not None:
            return False
        descriptor = file.open(os.O_RDWR)
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno not in _MAY_ONLY_READ:
            raise
        descriptor = file.open()
    with held_open(descriptor):
        if not _try(descriptor, fcntl.LOCK_SH):
            return True
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # a copy that a fork has of it would hold it on
    return False


def wait_until_free(file: Entry) -> None:
    """Block until nobody holds the lock of `file` exclusively, or the file is gone."""
    try:
        descriptor = file.open(os.O_RDWR)
    except FileNotFoundError:
        return
    with held_open(descriptor):
        fcntl.flock(descriptor, fcntl.LOCK_SH)


def wait_while_held(file: Entry, seconds: float = TIMEOUT_SECONDS) -> None:
    """Block while a process holds the lock of `file`, `seconds` at most; not at all if it is not a lock."""
    deadline = time.monotonic() + seconds
    with suppress(OSError):
        while is_held(file) and time.monotonic() < deadline:
            signal.sigtimedwait((), 2 * _POLL_SECONDS)


def give_back(descriptor: int) -> None:
    """Unlock for every copy of the descriptor, then close this one."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def _try(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
