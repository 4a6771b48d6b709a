"""The sessions of the older era, each with events of its own, and the requests of the newer, without any."""

from collections.abc import Callable

import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.streamable_http import StreamableHTTPServerTransport
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

MAX_SESSIONS = 512
MAX_SESSIONS_OF_ONE = 256
"""How many sessions there may be, and how many of them one parent may have."""
IDLE_SECONDS = 900.0
"""How long a session without any open request is kept: many clients never end theirs."""


class SessionTransport(StreamableHTTPServerTransport):
    """The transport of a session."""

    def is_heard(self, request_id: types.RequestId) -> bool:
        """Whether somebody listens for the answer to a request."""
        return str(request_id) in self._request_streams


class McpSessions(StreamableHTTPSessionManager):
    """Serves MCP of both eras. `ended` is called with the id of each session that has ended."""

    def __init__(self, server: Server, ended: Callable[[str], None]) -> None:
        super().__init__(server, session_idle_timeout=IDLE_SECONDS, max_sessions=MAX_SESSIONS)
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

    async def _discard_session(self, session_id: str, transport: StreamableHTTPServerTransport) -> None:
        await super()._discard_session(session_id, transport)
        self._ended(session_id)
