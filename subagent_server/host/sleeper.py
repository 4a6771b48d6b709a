"""Waiting for changes of the worker's own run: a FIFO that writers poke, and a slow poll besides."""

import asyncio
import os
from pathlib import Path

from subagent_server.host import wake


class Sleeper:
    """Wakes every waiter of this process at each poke. Made inside a running event loop."""

    def __init__(self, fifo: Path) -> None:
        self._fifo = fifo
        self._descriptor = wake.open_fifo(fifo)
        self._waiters: set[asyncio.Future[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._descriptor, self._poked)

    async def sleep(self, seconds: float = wake.SLOW_POLL_SECONDS) -> None:
        """Return at the next poke, or when the time is over."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.add(waiter)
        try:
            await asyncio.wait([waiter], timeout=seconds)
        finally:
            self._waiters.discard(waiter)

    def wake_all(self) -> None:
        """Wake every waiter."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def close(self) -> None:
        """Give back the FIFO."""
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        self._fifo.unlink(missing_ok=True)

    def _poked(self) -> None:
        wake.drain(self._descriptor)
        self.wake_all()
