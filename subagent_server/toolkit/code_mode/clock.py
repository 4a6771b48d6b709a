"""The time that a program may take; it stands still while the program waits for an answer of the parent."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager


class ProgramClock:
    """Counts the seconds of one program, from `run_out` on."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._left = seconds
        self._since = time.monotonic()
        self._pauses = 0
        self._changed = asyncio.Event()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let no time pass. Pauses may overlap."""
        self._pause(+1)
        try:
            yield
        finally:
            self._pause(-1)

    def _pause(self, by: int) -> None:
        self._count()
        self._pauses += by
        self._changed.set()

    def _count(self) -> None:
        now = time.monotonic()
        if not self._pauses:
            self._left -= now - self._since
        self._since = now

    async def run_out(self) -> None:
        """Return when the time is over."""
        self._since = time.monotonic()
        while True:
            self._changed.clear()
            self._count()
            if self._left <= 0:
                return
            try:
                async with asyncio.timeout(None if self._pauses else self._left):
                    await self._changed.wait()
            except TimeoutError:
                continue
