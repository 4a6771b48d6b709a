"""The sessions of the older era, each with events of its own: a client whose stream broke resumes it."""

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import anyio
import mcp_types as types
from mcp.server.auth.middleware.bearer_auth import AuthorizationContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http import (
    GET_STREAM_KEY,
    EventCallback,
    EventMessage,
    EventStore,
    StreamableHTTPServerTransport,
)
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from subagent_server.server.http.gates import MAX_BODY_BYTES

MAX_SESSIONS = 512
MAX_SESSIONS_OF_ONE = 256
"""How many sessions there may be, and how many of them one parent may have."""
IDLE_SECONDS = 900.0
"""How long a session without any open request is kept: many clients never end theirs."""
RETRY_MS = 1_000
"""When a client whose stream broke is to come back."""
MAX_EVENTS = 256
MAX_EVENT_BYTES = 256 << 10
MAX_EVENT_SECONDS = 600.0
"""How many events of a session are kept, how large they may be together, and for how long."""


@dataclass(frozen=True)
class _Kept:
    number: int
    stream: str
    text: bytes
    """The message as JSON, a fraction of its objects; empty for the beginning of a stream."""
    is_answer: bool
    at: float


class SessionEvents(EventStore):
    """The newest events of one session. Used on the event loop only."""

    def __init__(self) -> None:
        self._prefix = secrets.token_urlsafe(9)
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._count = self._bytes = 0
        self._came = anyio.Event()
        self._ended = False

    async def store_event(self, stream_id: str, message: types.JSONRPCMessage | None) -> str:
        """Keep an event and return its id."""
        self._count += 1
        event_id = f"{self._prefix}-{self._count}"
        text = b"" if message is None else message.model_dump_json(by_alias=True, exclude_unset=True).encode()
        is_answer = isinstance(message, types.JSONRPCResponse | types.JSONRPCError)
        self._kept[event_id] = _Kept(self._count, stream_id, text, is_answer, time.monotonic())
        self._bytes += len(text)
        self._drop()
        self._came.set()
        self._came = anyio.Event()
        return event_id

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        """Send what has come on a stream since an event, and on the stream of a request what still comes.

        The transport would send the rest itself, but an answer that comes between its look here and its
        beginning would reach nobody. Only the stream of no request is left to it.
        """
        last = self._kept.get(last_event_id)
        if last is None:
            return None
        sent = last.number
        while not self._ended:
            came = self._came
            for event_id, event in list(self._kept.items()):
                if event.stream != last.stream or event.number <= sent:
                    continue
                sent = event.number
                if event.text:
                    message = types.jsonrpc_message_adapter.validate_json(event.text, by_name=False)
                    await send_callback(EventMessage(message, event_id))
                if event.is_answer:
                    return None
            if last.stream == GET_STREAM_KEY:
                return last.stream
            if came is self._came:
                await came.wait()
        return None

    def end(self) -> None:
        """End the streams that are being resumed: the session has ended."""
        self._ended = True
        self._kept.clear()
        self._came.set()

    def _drop(self) -> None:
        oldest = time.monotonic() - MAX_EVENT_SECONDS
        while self._kept:
            first = next(iter(self._kept.values()))
            if len(self._kept) <= MAX_EVENTS and self._bytes <= MAX_EVENT_BYTES and first.at >= oldest:
                return
            self._kept.popitem(last=False)
            self._bytes -= len(first.text)


class McpSessions(StreamableHTTPSessionManager):
    """Serves MCP of both eras. `ended` is called with the id of each session that has ended."""

    def __init__(self, server: Server, ended: Callable[[str], None] = lambda _: None) -> None:
        super().__init__(
            server,
            retry_interval=RETRY_MS,
            session_idle_timeout=IDLE_SECONDS,
            max_request_body_size=MAX_BODY_BYTES,
            max_sessions=MAX_SESSIONS,
        )
        self._ended = ended
        self._events: dict[str, SessionEvents] = {}

    async def end_all(self) -> None:
        """End all sessions, with their streams."""
        for session, transport in list(self._server_instances.items()):
            await self._discard_session(session, transport)

    def _admit_session(self, requestor: AuthorizationContext | None) -> StreamableHTTPServerTransport | None:
        """Return the transport of a new session, or None if there are too many, or too many of one parent."""
        if sum(owner == requestor for owner in self._session_owners.values()) >= MAX_SESSIONS_OF_ONE:
            return None
        # A store for each session: the streams of all sessions have the same names.
        self.event_store = events = SessionEvents()
        transport = super()._admit_session(requestor)
        if transport is not None and transport.mcp_session_id is not None:
            self._events[transport.mcp_session_id] = events
        return transport

    async def _discard_session(self, session_id: str, transport: StreamableHTTPServerTransport) -> None:
        if (events := self._events.pop(session_id, None)) is not None:
            events.end()
        await super()._discard_session(session_id, transport)
        self._ended(session_id)
