"""Waiting for changes of the worker's own run: a FIFO that writers write to, and a slow poll."""

import asyncio
import os
from contextlib import suppress

from subagent_server.run.files import Entry
from subagent_server.run.wake import SLOW_POLL_SECONDS, drain, open_fifo


class Sleeper:
    """Wakes every waiter of this process at each poke, and all of them together at the slow poll.

    Made inside a running event loop.
    """

    def __init__(self, fifo: Entry) -> None:
        self._fifo = fifo
        self._descriptor = _opened(fifo)
        self._waiters: set[asyncio.Future[None]] = set()
        self._poll: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        if self._descriptor is not None:
            self._loop.add_reader(self._descriptor, self._poked)

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

    def _poked(self) -> None:
        if self._descriptor is not None:
            drain(self._descriptor)
        self.wake_all()

    def _look(self) -> None:
        self._poll = None
        self.wake_all()


def _opened(fifo: Entry) -> int | None:
    """Open the FIFO; None if the file system has none (FAT, some of FUSE): the slow poll wakes alone then."""
    try:
        return open_fifo(fifo)
    except OSError:
        return None


def _wake(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
