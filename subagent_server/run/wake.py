"""Wake-ups: a FIFO for each sleeper, poked after the awaited write.

The write comes first, the wake-up second, and the sleeper polls slowly besides, so a lost wake-up costs
seconds and never an answer. Standard library only, and without asyncio: the shim imports this module.
"""

import errno
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from subagent_server.run.files import Entry, held_open

if TYPE_CHECKING:
    import asyncio

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


class Sleeper:
    """Wakes every waiter of an event loop at each poke, and all of them together at the slow poll."""

    def __init__(self, fifo: Entry, loop: "asyncio.AbstractEventLoop") -> None:
        self._fifo = fifo
        self._loop = loop
        self._descriptor: int | None = None
        self._waiters: set[asyncio.Future[None]] = set()
        self._poll: asyncio.TimerHandle | None = None
        with suppress(OSError):  # a file system without FIFOs (FAT, some of FUSE): the slow poll alone wakes
            self._descriptor = open_fifo(fifo)
            loop.add_reader(self._descriptor, self._poked, self._descriptor)

    async def sleep(self, seconds: float = SLOW_POLL_SECONDS) -> None:
        """Return at the next poke, at the slow poll, or when the time is over, whatever comes first."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.add(waiter)
        if self._poll is None:
            self._poll = self._loop.call_later(SLOW_POLL_SECONDS, self._look)
        sooner = None
        if seconds < SLOW_POLL_SECONDS:
            sooner = self._loop.call_later(max(0.0, seconds), _wake, waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)
            if sooner is not None:
                sooner.cancel()

    def wake_all(self) -> None:
        """Wake every waiter."""
        for waiter in self._waiters:
            _wake(waiter)

    def close(self) -> None:
        """Remove the FIFO. A thread that still sleeps is woken."""
        self.wake_all()
        if self._poll is not None:
            self._poll.cancel()
        if self._descriptor is not None:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
        with suppress(OSError):
            self._fifo.unlink()

    def _poked(self, descriptor: int) -> None:
        drain(descriptor)
        self.wake_all()

    def _look(self) -> None:
        self._poll = None
        self.wake_all()


def _wake(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
