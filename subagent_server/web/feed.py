"""The feed of all open pages: the table of runs is read once, however many pages are open."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from subagent_server.service.access import Caller
from subagent_server.service.changes import Changes, until_root_is_made
from subagent_server.service.context import Service
from subagent_server.service.run_table import RunTable, TableNews

SETTLE_SECONDS = 0.2
"""How long further changes are waited for, to be sent together."""
POLL_SECONDS = 1.0
LEAST_POLLED = 10
POLLS_A_ROUND = 10
"""What a run does is not announced, nor that its processes were killed. So at each poll some of the runs at
work are looked at, each of them once a round."""
MAX_WAITING = 100
"""How much news a page may leave unread before it gets the whole table again."""

Reader = asyncio.Queue[dict[str, Any] | None]


class Feed:
    """Tells open pages of changed rows. It looks at nothing while no page is open."""

    def __init__(self, service: Service, caller: Caller) -> None:
        self._store = service.store
        self._changes = Changes(service.store)
        self._table = RunTable(service, caller)
        self._readers: set[Reader] = set()
        self._looking: asyncio.Task[None] | None = None
        self._is_read = asyncio.Event()
        self._changed: set[str] = set()
        self._turn = 0

    @asynccontextmanager
    async def reader(self) -> AsyncIterator[Reader]:
        """Give a queue with the whole table first, and then each change; None in it means the end."""
        reader: Reader = asyncio.Queue(MAX_WAITING)
        if self._looking is None or self._looking.done():
            self._is_read.clear()
            self._looking = asyncio.create_task(self._look())
        await self._is_read.wait()
        reader.put_nowait(self._whole())
        self._readers.add(reader)
        try:
            yield reader
        finally:
            self._readers.discard(reader)
            if not self._readers and self._looking is not None:
                self._looking.cancel()
                self._looking = None

    @asynccontextmanager
    async def log_watched(self, run_id: str, reader: Reader) -> AsyncIterator[None]:
        """Wake a waiting reader by an empty change each time that the log of a run has grown.

        Raises:
            InvalidRunId.
        """
        loop, run = asyncio.get_running_loop(), self._store.paths.run(run_id)

        def wake() -> None:
            if reader.empty():
                reader.put_nowait({})

        def hear(name: str) -> None:
            if name == run.log.name and not loop.is_closed():
                loop.call_soon_threadsafe(wake)

        forget = await asyncio.to_thread(self._changes.watcher.watch, run.directory, hear)
        try:
            yield
        finally:
            forget()

    def end(self) -> None:
        """End every reader: the server leaves."""
        self._end_readers()
        if self._looking is not None:
            self._looking.cancel()
        self._changes.close()

    def _end_readers(self) -> None:
        for reader in self._readers:
            _emptied(reader).put_nowait(None)

    def _whole(self) -> dict[str, Any]:
        return {"all": True, "rows": self._table.rows, "older": self._table.has_older}

    async def _look(self) -> None:
        loop, heard = asyncio.get_running_loop(), asyncio.Event()

        def note(run_id: str) -> None:
            self._changed.add(run_id)
            heard.set()

        def hear(run_id: str) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(note, run_id)

        if not self._store.paths.root.exists():
            self._is_read.set()
            await until_root_is_made(self._store)
        unsubscribe = await asyncio.to_thread(self._changes.subscribe, hear)
        try:
            await asyncio.to_thread(self._table.read_active)
            self._is_read.set()  # a page has its first rows now, and those of ended runs in a moment
            self._tell(self._whole())
            if len(self._table.active) > LEAST_POLLED:
                await asyncio.sleep(SETTLE_SECONDS)  # they are on their way before another thread is busy
            over = await asyncio.to_thread(self._table.read_over)
            if over:
                self._tell({**_wire(over), "older": self._table.has_older})
            while True:
                try:
                    async with asyncio.timeout(POLL_SECONDS):
                        await heard.wait()
                    await asyncio.sleep(SETTLE_SECONDS)
                    heard.clear()
                    wanted, self._changed = self._changed, set()
                except TimeoutError:
                    wanted = await asyncio.to_thread(self._some)
                news = await asyncio.to_thread(self._table.look, wanted)
                if news:
                    self._tell(_wire(news))
        finally:
            unsubscribe()
            self._end_readers()  # were it a fault, the pages come again

    def _some(self) -> set[str]:
        """Return the runs at work whose turn it is to be looked at, and the runs that were removed."""
        self._turn += 1
        active = self._table.active
        first, step = (0, 1) if len(active) <= LEAST_POLLED else (self._turn % POLLS_A_ROUND, POLLS_A_ROUND)
        return {*active[first::step], *self._table.removed()}

    def _tell(self, news: dict[str, Any]) -> None:
        for reader in self._readers:
            if reader.full():
                _emptied(reader).put_nowait(self._whole())
            else:
                reader.put_nowait(news)


def _wire(news: TableNews) -> dict[str, Any]:
    return {"rows": news.rows, "gone": news.gone}


def _emptied(reader: Reader) -> Reader:
    while not reader.empty():
        reader.get_nowait()
    return reader
