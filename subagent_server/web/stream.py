"""The event stream of an open page: rows of all runs, and the log of the run that it shows.

A page has one stream, because browsers open six connections to a server over all their tabs.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from subagent_server.domain.errors import SubagentError
from subagent_server.service.access import Caller
from subagent_server.service.context import Service
from subagent_server.service.get_logs import LogPage, get_logs
from subagent_server.web.feed import Feed, Reader

LOG_SECONDS = 0.2
"""How often the log of the shown run is looked at."""
QUIET_SECONDS = 15.0
"""After so long without news a comment is sent, so that a connection that has gone is noticed."""
LAST_LINES = 500
"""How much of a log is shown at first."""
LINES_AT_ONCE = 500

Event = tuple[str, dict[str, Any]]


class TabStream:
    """The stream of one page. `run_id` is the run whose log it shows, if any."""

    def __init__(self, service: Service, caller: Caller, feed: Feed, run_id: str | None) -> None:
        self._service = service
        self._caller = caller
        self._feed = feed
        self._run_id = run_id
        self._cursor: str | None = None

    async def lines(self) -> AsyncIterator[str]:
        """Yield the stream, in the format of server-sent events, until the server leaves."""
        async with self._feed.reader() as reader:
            while True:
                pieces = [_sent(*event) async for event in self._log()]
                found = await self._next(reader)
                if found is None:
                    return
                kind, news = found
                if news or pieces:
                    yield "".join([*pieces, _sent(kind, news) if news else ""])
                elif self._run_id is None:
                    yield ": nothing new\n\n"

    async def _next(self, reader: Reader) -> Event | None:
        """Return the next news of the table, empty if there is none for a while; None at the end."""
        try:
            async with asyncio.timeout(QUIET_SECONDS if self._run_id is None else LOG_SECONDS):
                news = await reader.get()
        except TimeoutError:
            return "runs", {}
        return None if news is None else ("runs", news)

    async def _log(self) -> AsyncIterator[Event]:
        """Yield what is new in the log."""
        is_first = self._cursor is None
        while self._run_id is not None:
            lines = LAST_LINES if self._cursor is None else LINES_AT_ONCE
            try:
                page = await asyncio.to_thread(self._page, self._run_id, lines)
            except SubagentError as error:
                yield "log", {"run": self._run_id, "error": error.sentence}
                self._run_id = None
                return
            self._cursor = page.cursor
            if page.text or is_first:
                yield "log", {"run": self._run_id, "first": is_first, "text": page.text}
            if page.at_end:
                return
            is_first = False

    def _page(self, run_id: str, lines: int) -> LogPage:
        return get_logs(self._service, run_id, "log", self._cursor, lines, self._caller)


def _sent(kind: str, data: dict[str, Any]) -> str:
    return f"event: {kind}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n"
