"""Plain `flock` on descriptors that are handed from process to process.

A lock lives as long as any copy of its descriptor: whoever hands one over only closes its own copy and never
unlocks, because unlocking one copy unlocks them all. Standard library only: the shim imports this module.
"""

import errno
import fcntl
import os
from pathlib import Path

_MAY_ONLY_READ = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


def open_lock(path: Path) -> int:
    """Open (and make) a lock file and return the descriptor, not yet locked."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def try_lock(descriptor: int) -> bool:
    """Take the lock exclusively if nobody has it, without waiting for a holder; probes hold nothing."""
    while not _try(descriptor, fcntl.LOCK_EX):
        if not _try(descriptor, fcntl.LOCK_SH):
            return False
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # only probes stand in the way: they are gone in a moment
    return True


def lock(descriptor: int) -> None:
    """Take the lock exclusively; blocks while another holds it, if only for the moment of a probe."""
    fcntl.flock(descriptor, fcntl.LOCK_EX)


def take(path: Path) -> int | None:
    """Return a descriptor that holds the lock of `path`, or None where another holds it."""
    descriptor = open_lock(path)
    if try_lock(descriptor):
        return descriptor
    os.close(descriptor)
    return None


def is_held(path: Path) -> bool:
    """Whether somebody holds the lock of `path` exclusively; a file that is missing is held by nobody.

    The probe is a shared lock on a descriptor of its own, so that probes never see each other as holders.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno not in _MAY_ONLY_READ:
            raise
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def wait_until_free(path: Path) -> None:
    """Block until nobody holds the lock of `path` exclusively, or the file is gone."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


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
