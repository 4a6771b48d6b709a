"""The events of other subagents that a worker writes into its journal beside its work.

They are those of nested runs, read from their journals, and those of programs, which come over HTTP. Each of
the two is bounded, so a talkative source can neither fill the disk nor keep the run from its work; the events
left out are counted.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, MutableMapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from subagent_server.domain.errors import SubagentError
from subagent_server.domain.subagent_events import KIND, ForeignEvent, nested_event
from subagent_server.service.journal_follower import JournalFollower, JournalPlace
from subagent_server.store.runs import RunStore
from subagent_server.worker.event_port import VARIABLES, EventPort
from subagent_server.worker.run_context import WorkerRun

LOOK_SECONDS = 1.0
EVENTS_A_SECOND = 50.0
BURST = 200
MAX_EVENTS = 10_000
"""Of one run, from each of the two."""
_LEFT_OUT = "events_left_out"


@asynccontextmanager
async def subagents_heard(
    run: WorkerRun, environment: MutableMapping[str, str], *, may_delegate: bool
) -> AsyncIterator[None]:
    """While inside, the journal gets the events of nested runs and of foreign programs.

    `environment`, which programs of the run inherit, gets the address to post to. `may_delegate` says whether
    the run may have nested runs at all.
    """
    nested, foreign = SubagentJournal(run.record), SubagentJournal(run.record)  # each has room of its own
    port = EventPort(foreign.write_foreign)
    for name in VARIABLES:
        environment.pop(name, None)  # that of the parent
    try:
        await port.open()
    except OSError as error:
        run.record("warning", message=f"There is no port for events of subagents: {error}")
    else:
        environment.update(dict.fromkeys(VARIABLES, port.address))
    over = asyncio.Event()
    events = NestedEvents(run.store, run.run_id)
    following = asyncio.create_task(nested.follow(events.look, over)) if may_delegate else None
    try:
        yield
    finally:
        port.close()
        over.set()
        if following is not None:
            (fault,) = await asyncio.gather(following, return_exceptions=True)
            if isinstance(fault, Exception):
                run.record("warning", message=f"Events of nested runs could not be read: {fault}")
        nested.close()
        foreign.close()


class NestedEvents:
    """Follows the journals of a run's children, each from its beginning. Used by one thread at a time.

    Journals announce nothing, so their follower looks now and then.
    """

    def __init__(self, store: RunStore, run_id: str) -> None:
        self._store = store
        self._run_id = run_id
        self._known: set[str] = set()
        self._following: dict[str, tuple[str, JournalFollower]] = {}

    def look(self, last: bool) -> list[dict[str, Any]]:
        """Return the new events as `subagent_event`s: of each child in its order.

        The `last` look adds ends that stand in the state of a child and not yet in its journal.
        """
        for run_id in self._store.children_of(self._run_id):
            if run_id not in self._known:
                self._begin(run_id)
        found: list[dict[str, Any]] = []
        for run_id, (name, follower) in list(self._following.items()):
            found += self._news(run_id, name, follower)
            found += self._ending(run_id, name, follower) if last else []
            if follower.place.ended:
                del self._following[run_id]
        return found

    def _begin(self, run_id: str) -> None:
        with suppress(SubagentError):  # it is being made: the next look finds it
            meta = self._store.read(run_id)
            self._known.add(run_id)
            self._following[run_id] = (meta.agent_name, JournalFollower(self._store, run_id, JournalPlace()))

    def _ending(self, run_id: str, name: str, follower: JournalFollower) -> list[dict[str, Any]]:
        with suppress(SubagentError):  # it was removed
            end = follower.ending(self._store.read(run_id))
            ended = nested_event(end, name, run_id) if end is not None else None
            return [ended] if ended is not None else []
        return []

    def _news(self, run_id: str, name: str, follower: JournalFollower) -> list[dict[str, Any]]:
        news = follower.news()
        nested = [nested_event(event, name, run_id) for event in news.events]
        origin = {"subagentName": name, "subagentRunId": run_id}
        left_out = [{"event": _LEFT_OUT, **origin}] if news.left_out else []
        return [*left_out, *(event for event in nested if event is not None)]


class SubagentJournal:
    """Writes `subagent_event`s within their bounds. Lives in the event loop of the worker."""

    def __init__(self, record: Callable[..., None], clock: Callable[[], float] = time.monotonic) -> None:
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
            with suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), LOOK_SECONDS)
            last = over.is_set()
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
