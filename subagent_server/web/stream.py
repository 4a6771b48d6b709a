"""The event stream of an open page: rows of all runs, and the log of the run that it shows.

A page has one stream, because browsers open six connections to a server over all their tabs.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from typing import Any

from subagent_server.domain.errors import InvalidRunId, SubagentError
from subagent_server.service.access import Caller
from subagent_server.service.context import Service
from subagent_server.service.get_logs import LogPage, get_logs
from subagent_server.web.feed import Feed

LOG_SECONDS = 0.1
"""How long nothing is looked at after a look, so that a log that grows all the time is sent in parts."""
POLL_SECONDS = 2.0
"""How often it is looked at if no change of it is heard."""
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
        async with self._feed.reader() as reader, AsyncExitStack() as watched:
            if self._run_id is not None:
                with suppress(InvalidRunId):  # the log says so
                    await watched.enter_async_context(self._feed.log_watched(self._run_id, reader))
            while True:
                async for event in self._log():
                    yield _sent(*event)
                try:
                    async with asyncio.timeout(QUIET_SECONDS if self._run_id is None else POLL_SECONDS):
                        news = await reader.get()
                except TimeoutError:
                    yield ": nothing new\n\n"
                    continue
                if news is None:
                    return
                if news:
                    yield _sent("runs", news)
                if self._run_id is not None:
                    await asyncio.sleep(LOG_SECONDS)

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
