"""The sessions of the older era, each with events of its own, and the requests of the newer, without any."""

from collections.abc import Callable
from contextvars import ContextVar
from uuid import uuid4

import mcp_types as types
from mcp.server.auth.middleware.bearer_auth import AuthorizationContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http import StreamableHTTPServerTransport
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from subagent_server.server.http.bodies import MAX_BODY_BYTES
from subagent_server.server.http.session_events import SessionEvents

MAX_SESSIONS = 512
MAX_SESSIONS_OF_ONE = 256
"""How many sessions there may be, and how many of them one parent may have."""
IDLE_SECONDS = 900.0
"""How long a session without any open request is kept: many clients never end theirs."""
RETRY_MS = 1_000
"""When a client whose stream broke is to come back."""

_as_json: ContextVar[bool] = ContextVar("as_json", default=False)


class SessionTransport(StreamableHTTPServerTransport):
    """The transport of a session. A request that `is_short` is answered as JSON, others by a stream."""

    def __init__(self, is_short: Callable[[bytes], bool]) -> None:
        self.events = SessionEvents()
        self._is_short = is_short
        super().__init__(
            mcp_session_id=uuid4().hex,
            event_store=self.events,
            retry_interval=RETRY_MS,
            idle_timeout=IDLE_SECONDS,
        )

    @property
    def is_json_response_enabled(self) -> bool:
        """Whether the request of this task is answered as JSON: the transport asks wherever that matters."""
        return _as_json.get()

    @is_json_response_enabled.setter
    def is_json_response_enabled(self, enabled: bool) -> None:
        """Each request decides."""

    def is_heard(self, request_id: types.RequestId) -> bool:
        """Whether somebody listens for the answer to a request."""
        stream = str(request_id)
        return stream in self._request_streams or self.events.is_resumed(stream)

    async def terminate(self) -> None:
        """End the session, closing all streams."""
        self.events.end()
        await super().terminate()

    async def _handle_post_request(
        self, scope: Scope, request: Request, receive: Receive, send: Send
    ) -> None:
        token = _as_json.set(self._is_short(await request.body()))
        try:
            await super()._handle_post_request(scope, request, receive, send)
        finally:
            _as_json.reset(token)


class McpSessions(StreamableHTTPSessionManager):
    """Serves MCP of both eras. `ended` is called with the id of each session that has ended."""

    def __init__(
        self, server: Server, is_short: Callable[[bytes], bool], ended: Callable[[str], None] = lambda _: None
    ) -> None:
        super().__init__(server, max_request_body_size=MAX_BODY_BYTES, max_sessions=MAX_SESSIONS)
        self._is_short = is_short
        self._ended = ended

    @property
    def count(self) -> int:
        """How many sessions there are."""
        return len(self._server_instances)

    def is_heard(self, session: str, request_id: types.RequestId) -> bool:
        """Whether somebody listens for the answer to a request of a session."""
        transport = self._server_instances.get(session)
        return isinstance(transport, SessionTransport) and transport.is_heard(request_id)

    async def end_all(self) -> None:
        """End all sessions, with their streams."""
        for session, transport in list(self._server_instances.items()):
            await self._discard_session(session, transport)

    def _admit_session(self, requestor: AuthorizationContext | None) -> StreamableHTTPServerTransport | None:
        """Return the transport of a new session, or None if there are too many."""
        of_one = sum(owner == requestor for owner in self._session_owners.values())
        if self.count >= MAX_SESSIONS or of_one >= MAX_SESSIONS_OF_ONE:
            return None
        transport = SessionTransport(self._is_short)
        session = transport.mcp_session_id
        assert session is not None
        if requestor is not None:
            self._session_owners[session] = requestor
        self._server_instances[session] = transport
        return transport

    async def _discard_session(self, session_id: str, transport: StreamableHTTPServerTransport) -> None:
        await super()._discard_session(session_id, transport)
        self._ended(session_id)
