"""The events of one session, kept for a while: a client whose stream broke gets the rest of it.

Each session has a store of its own, since the streams of all sessions have the same names. Events that are
too old or too many are dropped; the client can still ask `check_status`.
"""

import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass

import anyio
import mcp_types as types
from mcp.server.streamable_http import GET_STREAM_KEY, EventCallback, EventMessage, EventStore

MAX_EVENTS = 256
MAX_BYTES = 1 << 20
MAX_SECONDS = 600.0
"""How many events of a session are kept, how large they may be together, and for how long."""


@dataclass(frozen=True)
class _Kept:
    stream: str
    message: types.JSONRPCMessage | None
    size: int
    at: float

    @property
    def is_answer(self) -> bool:
        """Whether it is the last of the stream of a request."""
        return isinstance(self.message, types.JSONRPCResponse | types.JSONRPCError)


class SessionEvents(EventStore):
    """Keeps the events of the streams that their client can resume. Used on the event loop only."""

    def __init__(self) -> None:
        self._prefix = secrets.token_urlsafe(9)
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._count = self._bytes = 0
        self._came = anyio.Event()
        self._ended = False
        self._resumed: dict[str, int] = {}

    def is_resumed(self, stream: str) -> bool:
        """Whether a client that came back listens to a stream now."""
        return stream in self._resumed

    async def store_event(self, stream_id: str, message: types.JSONRPCMessage | None) -> str:
        """Keep an event and return its id. What no client could ask for again is not kept.

        That is an answer that comes first on its stream: its client has no id to come back with.
        """
        self._count += 1
        event_id = f"{self._prefix}-{self._count}"
        event = _Kept(stream_id, message, _size(message), time.monotonic())
        if not event.is_answer or self._has(stream_id):
            self._kept[event_id] = event
            self._bytes += event.size
            self._drop()
            self._came.set()
            self._came = anyio.Event()
        return event_id

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        """Send what has come on a stream since an event, and on the stream of a request what still comes.

        Returns the stream if its further events are to be sent by the transport.
        """
        last = self._kept.get(last_event_id)
        if last is None:
            return None
        stream, sent = last.stream, last_event_id
        self._resumed[stream] = self._resumed.get(stream, 0) + 1
        try:
            while not self._ended:
                came = self._came
                for event_id, event in self._after(stream, sent):
                    sent = event_id
                    if event.message is not None:
                        await send_callback(EventMessage(event.message, event_id))
                    if event.is_answer:
                        return None
                if stream == GET_STREAM_KEY:
                    return stream
                if came is self._came:
                    await came.wait()
            return None
        finally:
            self._resumed[stream] -= 1
            if not self._resumed[stream]:
                del self._resumed[stream]

    def end(self) -> None:
        """End the streams that are being resumed: the session has ended."""
        self._ended = True
        self._kept.clear()
        self._came.set()

    def _has(self, stream: str) -> bool:
        return any(event.stream == stream and not event.is_answer for event in self._kept.values())

    def _after(self, stream: str, last_event_id: str) -> list[tuple[str, _Kept]]:
        number = _number(last_event_id)
        return [
            (event_id, event)
            for event_id, event in self._kept.items()
            if event.stream == stream and _number(event_id) > number
        ]

    def _drop(self) -> None:
        oldest = time.monotonic() - MAX_SECONDS
        while self._kept:
            first = next(iter(self._kept.values()))
            if len(self._kept) <= MAX_EVENTS and self._bytes <= MAX_BYTES and first.at >= oldest:
                return
            _, dropped = self._kept.popitem(last=False)
            self._bytes -= dropped.size


def _size(message: types.JSONRPCMessage | None) -> int:
    return 0 if message is None else len(message.model_dump_json(by_alias=True, exclude_unset=True))


def _number(event_id: str) -> int:
    return int(event_id.rpartition("-")[2])
