"""Notifications on their way to a client that may be slow: bounded, and nobody ever waits for it."""

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType

from mcp_types import ServerNotification

MAX_WAITING = 256


class Outbox:
    """Sends notifications one after the other. If it is full, drops the oldest and reports how many.

    `send` may wait for the client as long as it likes. `dropped` makes the notification for a number that was
    dropped, or None if the client does not want it. Use it as a context: it sends only inside.
    """

    def __init__(
        self,
        send: Callable[[ServerNotification], Awaitable[None]],
        dropped: Callable[[int], ServerNotification | None],
        size: int = MAX_WAITING,
    ) -> None:
        self._send = send
        self._notice_of = dropped
        self._size = size
        self._waiting: deque[ServerNotification | asyncio.Event] = deque()
        self._dropped = 0
        self._lock = threading.Lock()
        self._filled = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._sender: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Outbox":
        self._sender = asyncio.create_task(self._work())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._sender is not None:
            self._sender.cancel()

    def put(self, item: ServerNotification | asyncio.Event) -> None:
        """Take a notification, from any thread, without waiting."""
        with self._lock:
            self._waiting.append(item)
            if len(self._waiting) > self._size:
                self._waiting.popleft()
                self._dropped += 1
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._filled.set)

    async def drained(self, seconds: float) -> None:
        """Wait until what was put so far is sent, at most this long."""
        passed = asyncio.Event()
        self.put(passed)
        try:
            async with asyncio.timeout(seconds):
                await passed.wait()
        except TimeoutError:
            return

    async def _work(self) -> None:
        while True:
            await self._filled.wait()
            self._filled.clear()
            while (item := self._next()) is not None:
                if isinstance(item, asyncio.Event):
                    item.set()
                else:
                    await self._send(item)

    def _next(self) -> "ServerNotification | asyncio.Event | None":
        """Return the next notification: first of all, how many were dropped."""
        with self._lock:
            dropped, self._dropped = self._dropped, 0
            if dropped and (notice := self._notice_of(dropped)) is not None:
                return notice
            return self._waiting.popleft() if self._waiting else None
