"""What is on its way to a client that may be slow: bounded, and nobody ever waits for it."""

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType

from mcp_types import ServerNotification

MAX_WAITING = 256


class Outbox:
    """Sends notifications one after the other. Where it is full the oldest are dropped, and that is told.

    `send` may wait for the client as long as it likes; `told` makes the notification for a number that was
    dropped, or None where the client does not want to know. Use it as a context: it sends only inside.
    """

    def __init__(
        self,
        send: Callable[[ServerNotification], Awaitable[None]],
        told: Callable[[int], ServerNotification | None],
        size: int = MAX_WAITING,
    ) -> None:
        self._send = send
        self._told = told
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
        """Return what is to be sent next: first of all, how much was dropped."""
        with self._lock:
            dropped, self._dropped = self._dropped, 0
            if dropped and (notice := self._told(dropped)) is not None:
                return notice
            return self._waiting.popleft() if self._waiting else None
