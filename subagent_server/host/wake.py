"""Waking who sleeps: one FIFO a sleeper, poked after the write it waits for.

The write comes first, the wake-up second, and the sleeper polls slowly besides, so a lost wake-up costs
seconds and never an answer. Standard library only.
"""

import errno
import os
from contextlib import suppress
from pathlib import Path

SLOW_POLL_SECONDS = 2.0


def open_fifo(path: Path) -> int:
    """Make a FIFO (an old one is replaced) and return its non-blocking descriptor.

    It is opened for writing too, so that it never reads as ended when a writer leaves.
    """
    path.unlink(missing_ok=True)
    os.mkfifo(path, 0o600)
    return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)


def drain(descriptor: int) -> None:
    """Forget the pokes that have come."""
    with suppress(BlockingIOError):
        while os.read(descriptor, 4096):
            pass


def poke(path: Path) -> None:
    """Wake the owner of a FIFO, if it has one; a FIFO that nobody reads any more is removed."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENXIO:
            path.unlink(missing_ok=True)
        return
    try:
        with suppress(BlockingIOError, BrokenPipeError):  # full: one is queued already; or it left just now
            os.write(descriptor, b"!")
    finally:
        os.close(descriptor)
