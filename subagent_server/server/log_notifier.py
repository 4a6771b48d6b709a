"""The events of runs as logging notifications, for clients that ask for them.

An older client asks once, with `logging/setLevel`, for the events of its parent's live runs. A modern one
asks with each request for those of the runs that the request waits for, on the request's own stream.
"""

import asyncio
import json
import math
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, get_args

import mcp_types as types
from mcp.server.session import ServerSession
from mcp_types import (
    LoggingLevel,
    LoggingMessageNotification,
    LoggingMessageNotificationParams,
    ServerNotification,
)

from subagent_server.run.errors import SubagentError, UnknownRun
from subagent_server.run.records import RunMeta
from subagent_server.server.notifications import Background, is_modern
from subagent_server.server.resources import Context
from subagent_server.verbs.access import Caller, OtherParents
from subagent_server.verbs.get_logs import Event, JournalFollower, JournalPosition
from subagent_server.verbs.service import Service
from subagent_server.verbs.wait_for_runs import Changes, Wait, until_root_is_made, wait_until

LOOK_SECONDS = 1.0
"""How often journals are looked at: unlike a state, a new line of a journal is not announced."""
FLUSH_SECONDS = 2.0
"""How long an answer waits, at most, for the last events before it: they go through the same pipe."""
MAX_POSITIONS = 1_000
MAX_WAITING = 256
LEVELS: tuple[LoggingLevel, ...] = get_args(LoggingLevel)
"""From the least to the most severe, as the protocol declares them."""
MAX_TEXT = 2_000
MAX_DEPTH = 5
MAX_DATA = 8_000
"""Characters of a text in an event, levels of it, and characters of all of it, as JSON."""

_BY_TYPE: dict[str, LoggingLevel] = {
    "thought": "debug",
    "turn": "debug",
    "usage": "debug",
    "subagent_event": "debug",
    "server_log": "debug",
    "warning": "warning",
    "no_reply": "warning",
}


class LogNotifier:
    """Sends the events of runs to one client, as it asks for them. No run and no call ever waits for this."""

    def __init__(self, service: Service, changes: Changes, caller: Caller, background: Background) -> None:
        self._service = service
        self._changes = changes
        self._caller = caller
        self._background = background
        self._began = _this_millisecond()
        self._positions: dict[str, JournalPosition] = {}
        self._level: types.LoggingLevel = "emergency"
        self._is_following = False
        self._live: dict[str, _Tail | None] = {}
        self._of_others: dict[str, RunMeta] = {}

    async def set_level(self, context: Context, params: types.SetLevelRequestParams) -> types.EmptyResult:
        """Send events of at least this level to an older client, from now on."""
        self._level = params.level
        if not self._is_following:
            since = _this_millisecond()
            await asyncio.to_thread(lambda: self._discover(self._service.store.live_ids(), since))
            if not self._is_following:  # only now: a request that is cancelled has asked for nothing
                self._is_following = True
                self._background.start(self._follow_live_runs(context.session, since))
        return types.EmptyResult()

    @asynccontextmanager
    async def sending(self, context: Context, run_ids: Collection[str]) -> AsyncIterator[None]:
        """Send the events of these runs while a request of a modern client waits for them, if it asked."""
        level = _asked_level(context)
        if level is None:
            yield
            return
        tails = await asyncio.to_thread(self._tails, run_ids)
        send = partial(context.session.send_notification, related_request_id=context.request_id)
        outbox = Outbox(send, lambda: level)

        def look() -> None:
            for tail in tails:
                tail.send(outbox)

        following = self._background.start(self._follow(look, outbox, frozenset(run_ids)))
        try:
            yield
            await asyncio.to_thread(self._send_ends, tails, outbox)
            with suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_SECONDS):
                    await outbox.flush()
        finally:
            following.cancel()
            self._remember(tails)

    # -- for one request

    def _tails(self, run_ids: Iterable[str]) -> "list[_Tail]":
        found: list[_Tail] = []
        for run_id in run_ids:
            with suppress(UnknownRun):  # removed meanwhile
                tail = self._tail(run_id, self._began, self._positions.get(run_id))
                found += [] if tail is None else [tail]
        return found

    def _send_ends(self, tails: "list[_Tail]", outbox: "Outbox") -> None:
        """Send the last events, and the ends that the journals do not have yet."""
        for tail in tails:
            tail.send(outbox)
            with suppress(SubagentError):  # it became unreadable meanwhile: the answer of the call reports it
                tail.send_end(self._service.store.read(tail.run_id), outbox)

    def _remember(self, tails: "list[_Tail]") -> None:
        """Let the next request continue where this one stopped."""
        for tail in tails:
            self._positions.pop(tail.run_id, None)
            self._positions[tail.run_id] = tail.position
        while len(self._positions) > MAX_POSITIONS:
            del self._positions[next(iter(self._positions))]

    # -- for a whole connection

    async def _follow_live_runs(self, session: ServerSession, since: datetime) -> None:
        """Send the events of the live runs of the client's parent, as long as the client is there."""
        await until_root_is_made(self._service.store)
        await asyncio.to_thread(self._discover, self._begun(since), since)
        outbox = Outbox(session.send_notification, lambda: self._level)

        def look() -> None:
            live = set(self._service.store.live_ids())
            self._discover(live | self._of_others.keys(), since)
            for tail in self._live.values():
                if tail is not None:
                    tail.send(outbox)
            for run_id in self._live.keys() - live:
                if (tail := self._live.pop(run_id)) is not None:
                    self._send_ends([tail], outbox)
            for run_id in self._of_others.keys() - live:
                del self._of_others[run_id]

        await self._follow(look, outbox)

    def _discover(self, run_ids: Iterable[str], since: datetime) -> None:
        """Begin to follow runs; one that is not open to the caller is only remembered.

        A run of another parent is followed from the moment at which that parent has gone, and its end is
        news even if it came before the first look after that.
        """
        others = OtherParents(self._caller)
        for run_id in run_ids:
            if run_id in self._live:
                continue
            begins = since if run_id not in self._of_others else _this_millisecond()
            with suppress(UnknownRun):  # it is being made: the next look will find it
                if not self._is_of(others, run_id):
                    self._live[run_id] = tail = self._tail(run_id, begins)
                    if tail is not None and run_id in self._of_others:
                        tail.expect_end()

    def _is_of(self, others: OtherParents, run_id: str) -> bool:
        """Whether a run is another parent's. Raises UnknownRun."""
        meta = self._of_others.get(run_id) or self._read(run_id)
        if meta is None or not others.own(meta.started_by):
            return False
        self._of_others[run_id] = meta
        return True

    def _begun(self, since: datetime) -> Iterator[str]:
        """Yield the runs that began since then: if the root was not there yet, some may have ended."""
        for run_id in self._service.store.newest_first():
            with suppress(SubagentError):
                if self._service.store.read(run_id).created_at < since:
                    return
                yield run_id

    # -- for both

    async def _follow(
        self, look: Callable[[], None], outbox: "Outbox", run_ids: frozenset[str] | None = None
    ) -> None:
        """Send what `look`, called in a thread after each change and once a second, puts into the outbox."""

        def found() -> bool | None:
            look()
            return bool(outbox.waiting) or None

        while True:
            await wait_until(self._changes, found, Wait(math.inf, run_ids, poll_seconds=LOOK_SECONDS))
            await outbox.flush()

    def _tail(self, run_id: str, since: datetime, position: JournalPosition | None = None) -> "_Tail | None":
        """Return the tail of a run: from `position` on, or its start if it began after `since`, or now.

        Raises:
            UnknownRun: there is none, or not yet.
        """
        meta = self._read(run_id)
        if meta is None or not self._caller.may_open(meta):
            return None
        if position is None and meta.created_at >= since:
            position = JournalPosition()
        return _Tail(JournalFollower(self._service.store, run_id, position), run_id, meta.agent_name)

    def _read(self, run_id: str) -> RunMeta | None:
        """Return a state; None if it is unreadable, which every other door reports. Raises UnknownRun."""
        try:
            return self._service.store.read(run_id)
        except UnknownRun:
            raise
        except SubagentError:
            return None


def _asked_level(context: Context) -> types.LoggingLevel | None:
    """Return the level that a request of a modern client asks for."""
    if not is_modern(context) or context.meta is None:
        return None
    asked = context.meta.get(types.LOG_LEVEL_META_KEY)
    return next((level for level in LEVELS if level == asked), None)


def _this_millisecond() -> datetime:
    """Return the present as precisely as runs are dated."""
    moment = datetime.now(UTC)
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


class _Tail:
    """A run whose events are sent. The events that one thread has read are queued before another reads on."""

    def __init__(self, follower: JournalFollower, run_id: str, agent: str) -> None:
        self.run_id = run_id
        self._follower = follower
        self._agent = agent
        self._lock = threading.Lock()

    @property
    def position(self) -> JournalPosition:
        """How far the journal has been read."""
        return self._follower.position

    def expect_end(self) -> None:
        """Have the end of the run sent, although it may be in the journal already."""
        self._follower.position = JournalPosition(self.position.cursor)

    def send(self, outbox: "Outbox") -> None:
        """Send the new events."""
        with self._lock:
            news = self._follower.news()
            if news.left_out and outbox.takes("warning"):
                outbox.put(left_out_message(run_id=self.run_id))
            for event in news.events:
                self._put(event, outbox)

    def send_end(self, meta: RunMeta, outbox: "Outbox") -> None:
        """Send the end of a run that has ended, if its journal did not have it yet."""
        with self._lock:
            event = self._follower.ending(meta)
            if event is not None:
                self._put(event, outbox)

    def _put(self, event: Event, outbox: "Outbox") -> None:
        if outbox.takes(level_of(event)):
            outbox.put(log_message(self._agent, self.run_id, event))


class Outbox:
    """Notifications that wait until the client has read those before.

    `level` returns the least that the client wants now. If there are too many, the oldest are dropped and
    counted, which the client learns if it wants warnings: one that does not read delays no run and no call.
    """

    def __init__(
        self, send: Callable[[ServerNotification], Awaitable[None]], level: Callable[[], LoggingLevel]
    ) -> None:
        self._send = send
        self._level = level
        self.waiting: deque[ServerNotification] = deque()
        self._dropped = 0
        self._lock = threading.Lock()
        self._one_at_a_time = asyncio.Lock()

    def takes(self, level: LoggingLevel) -> bool:
        """Whether the client wants notifications of this level."""
        return LEVELS.index(level) >= LEVELS.index(self._level())

    def put(self, item: ServerNotification) -> None:
        """Take a notification, from any thread, without waiting."""
        with self._lock:
            self.waiting.append(item)
            if len(self.waiting) > MAX_WAITING:
                self.waiting.popleft()
                self._dropped += 1

    async def flush(self) -> None:
        """Send all that waits. If two flush at once, the second waits for the first."""
        async with self._one_at_a_time:
            while self.waiting:
                with self._lock:
                    dropped, self._dropped = self._dropped, 0
                if dropped and self.takes("warning"):
                    await self._send(left_out_message(dropped))
                await self._send(self.waiting.popleft())


def level_of(event: Event) -> LoggingLevel:
    """Return how severe an event is: thoughts debug, recovered trouble warning, failures error."""
    kind = event.get("type")
    if kind == "run_ended" and event.get("status") == "failed":
        return "error"
    if kind == "tool_result" and (event.get("isError") or event.get("exitCode")):
        return "warning"
    return _BY_TYPE.get(str(kind), "info")


def log_message(agent: str, run_id: str, event: Event) -> LoggingMessageNotification:
    """Return the notification of an event: its data is the event with the id of its run, long texts cut."""
    data = {"runId": run_id, **_bounded(event, MAX_DEPTH)}
    size = len(json.dumps(data, ensure_ascii=False))
    if size > MAX_DATA:
        kept = {key: value for key, value in data.items() if not isinstance(value, dict | list)}
        data = {**_fitting(kept), "cut": True}
    return _message(level_of(event), f"subagent.{agent}", data)


def left_out_message(number: int | None = None, run_id: str | None = None) -> LoggingMessageNotification:
    """Return the notification that too many events (of one run) have come, and some were left out."""
    data = {
        "type": "events_left_out",
        **({} if run_id is None else {"runId": run_id}),
        **({} if number is None else {"count": number}),
        "hint": 'get_logs(stream="events") has them all.',
    }
    return _message("warning", "subagent", data)


def _message(level: LoggingLevel, logger: str, data: Any) -> LoggingMessageNotification:
    params = LoggingMessageNotificationParams(level=level, logger=logger, data=data)
    return LoggingMessageNotification(params=params)


def _fitting(data: Event) -> Event:
    """Return the first facts that fit together."""
    fitting: Event = {}
    left = MAX_DATA
    for key, value in data.items():
        left -= len(json.dumps({key: value}, ensure_ascii=False))
        if left >= 0:
            fitting[key] = value
    return fitting


def _bounded(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return _text(value)
    if not isinstance(value, dict | list):
        return value
    if depth == 0:
        return "…"
    if isinstance(value, list):
        return [_bounded(item, depth - 1) for item in value]
    return {_text(key): _bounded(item, depth - 1) for key, item in value.items()}


def _text(text: str) -> str:
    """Cut a long text; what UTF-8 cannot hold would end the connection, and becomes `?`."""
    short = text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}… ({len(text):,} characters)"
    return short.encode("utf-8", "replace").decode()
