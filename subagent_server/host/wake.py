"""Wake-ups: one FIFO a sleeper, poked after the write it waits for.

The write comes first, the wake-up second, and the sleeper polls slowly besides, so a lost wake-up costs
seconds and never an answer. Standard library only.
"""

import errno
import os
import stat
from contextlib import suppress

from subagent_server.host.directory import Entry

SLOW_POLL_SECONDS = 2.0


def open_fifo(fifo: Entry) -> int:
    """Make a FIFO (an old one is replaced) and return its non-blocking descriptor.

    It is opened for writing too, so that it never reads as ended when a writer leaves.
    """
    fifo.unlink()
    fifo.make_fifo()
    return fifo.open(os.O_RDWR, stat.S_IFIFO)


def drain(descriptor: int) -> None:
    """Forget the pokes that have come."""
    with suppress(BlockingIOError):
        while os.read(descriptor, 4096):
            pass


def poke(fifo: Entry) -> None:
    """Wake the owner of a FIFO, if it has one; a FIFO that nobody reads any more is removed."""
    try:
        descriptor = fifo.open(os.O_WRONLY, stat.S_IFIFO)
    except OSError as error:
        if error.errno == errno.ENXIO:
            fifo.unlink()
        return
    try:
        with suppress(BlockingIOError, BrokenPipeError):  # full: one is queued already; or it left just now
            os.write(descriptor, b"!")
    finally:
        os.close(descriptor)
