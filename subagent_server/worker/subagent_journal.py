"""The foreign part of a run's journal: events of its nested runs, and of programs over HTTP.

Each of the two is bounded, so a talkative source can neither fill the disk nor keep the run from its work;
the events left out are counted.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Protocol

from subagent_server.domain.subagent_events import KIND, ForeignEvent

LOOK_SECONDS = 1.0
EVENTS_A_SECOND = 50.0
BURST = 200
MAX_EVENTS = 10_000
"""Of one run, from each of the two."""


class JournalWriter(Protocol):
    """Appends an event to the journal of the run."""

    def __call__(self, kind: str, **facts: Any) -> None:
        """Append it."""
        ...


class SubagentJournal:
    """Writes `subagent_event`s within their bounds. Lives in the event loop of the worker."""

    def __init__(self, record: JournalWriter, clock: Callable[[], float] = time.monotonic) -> None:
        self._record = record
        self._clock = clock
        self._room = float(BURST)
        self._at = clock()
        self._written = self._left_out = 0

    def write(self, facts: dict[str, Any]) -> None:
        """Write an event, or count it if there are too many."""
        if self._has_room():
            self._record(KIND, **facts)

    def write_foreign(self, event: ForeignEvent) -> None:
        """Write the event of a program, or count it: of thousands a second only those written cost more."""
        if self._has_room():
            self._record(KIND, **event.facts())

    def close(self) -> None:
        """Record the events that were left out last."""
        self._record_left_out()

    async def follow(self, look: Callable[[bool], list[dict[str, Any]]], over: asyncio.Event) -> None:
        """Write the events that `look`, in a thread, finds each second, and once more when `over`."""
        last = False
        while not last:
            last = await _is_set(over, LOOK_SECONDS)
            for facts in await asyncio.to_thread(look, last):
                self.write(facts)

    def _has_room(self) -> bool:
        """Take the room of one event, or count it as left out."""
        moment = self._clock()
        self._room = min(float(BURST), self._room + (moment - self._at) * EVENTS_A_SECOND)
        self._at = moment
        if self._room < 1 or self._written >= MAX_EVENTS:
            self._left_out += 1
            return False
        self._record_left_out()
        self._room -= 1
        self._written += 1
        return True

    def _record_left_out(self) -> None:
        if self._left_out:
            self._record(KIND, event="events_left_out", count=self._left_out)
            self._left_out = 0


async def _is_set(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False
