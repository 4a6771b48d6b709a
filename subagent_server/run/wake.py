"""Wake-ups: a FIFO for each sleeper, poked after the awaited write.

The write comes first, the wake-up second, and the sleeper polls slowly besides, so a lost wake-up costs
seconds and never an answer. Standard library only, and without asyncio: the shim imports this module.
"""

import errno
import os
import stat
from contextlib import suppress

from subagent_server.run.files import Entry, held_open
from subagent_server.run.paths import RunPaths

SLOW_POLL_SECONDS = 2.0


def open_fifo(fifo: Entry) -> int:
    """Make a FIFO (replacing an old FIFO) and return its non-blocking descriptor.

    The FIFO is opened for writing too, so a leaving writer never causes an end of file.
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
    """Wake the owner of a FIFO, if there is an owner; a FIFO without a reader is removed."""
    try:
        descriptor = fifo.open(os.O_WRONLY, stat.S_IFIFO)
    except OSError as error:
        if error.errno == errno.ENXIO:
            fifo.unlink()
        return
    # full: one is queued already; or it left just now
    with held_open(descriptor), suppress(BlockingIOError, BrokenPipeError):
        os.write(descriptor, b"!")


def wake_sleepers(run: RunPaths) -> None:
    """Wake all on this host who wait for changes of a run. Raises OSError."""
    for fifo in run.sleepers():
        poke(fifo)


def retire(run: RunPaths) -> None:
    """Remove the mark of a run whose tree is gone, and wake its watchers."""
    with suppress(OSError):
        run.root.change_mark(run.run_id).unlink()
        wake_sleepers(run)
