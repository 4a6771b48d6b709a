"""The open calls of all HTTP clients: a call ends with its client, and all end when the server leaves."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import anyio
import mcp_types as types
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.streamable_http import MCP_SESSION_ID_HEADER
from mcp.shared.exceptions import MCPError

from subagent_server.server.http.clients import request_of
from subagent_server.server.notices import is_modern
from subagent_server.server.unanswered import LEFT

Context = ServerRequestContext[Any, Any]
MAX_OPEN = 2_000
"""How many requests may have no answer at once."""
LOOK_SECONDS = 1.0
GRACE_SECONDS = 30.0
"""How long a client of the older era may take to come back for an answer before the call ends."""

AWAY = (
    f"Nobody listened to this call for {GRACE_SECONDS:g} s, so it has ended. Runs go on: look with "
    "list_runs, and wait again."
)


@dataclass(eq=False)
class _OpenCall:
    scope: anyio.CancelScope
    session: str | None
    request_id: types.RequestId
    gone_since: float | None = None
    why_ended: str = LEFT


class OpenCalls:
    """Notes each request until it is answered. A newer client that goes away cancels its request itself.

    `is_heard(session, request)` says whether anybody listens for the answer to a request of the older era.
    """

    def __init__(self, is_heard: Callable[[str, types.RequestId], bool]) -> None:
        self._is_heard = is_heard
        self._open: set[_OpenCall] = set()
        self._leaving = False

    @property
    def count(self) -> int:
        """How many requests have no answer."""
        return len(self._open)

    async def __call__(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Answer a message, unless its client goes away or the server leaves.

        Raises:
            MCPError.
        """
        if ctx.request_id is None:
            return await call_next(ctx)
        if self._leaving or len(self._open) >= MAX_OPEN:
            raise MCPError(types.INTERNAL_ERROR, "The server has too much to do, or leaves: try again soon.")
        session = None if is_modern(ctx) else request_of(ctx).headers.get(MCP_SESSION_ID_HEADER)
        with anyio.CancelScope() as scope:
            call = _OpenCall(scope, session, ctx.request_id)
            self._open.add(call)
            try:
                return await call_next(ctx)
            finally:
                self._open.discard(call)
        raise MCPError(types.CONNECTION_CLOSED, call.why_ended)

    async def watch(self) -> None:
        """End the calls of the older era whose clients stay away, for ever."""
        while True:
            await anyio.sleep(LOOK_SECONDS)
            now = anyio.current_time()
            for call in list(self._open):
                if call.session is None or self._is_heard(call.session, call.request_id):
                    call.gone_since = None
                elif call.gone_since is None:
                    call.gone_since = now
                elif now - call.gone_since >= GRACE_SECONDS:
                    call.why_ended = AWAY
                    call.scope.cancel()

    def end_all(self) -> None:
        """Answer every open request with the error that says that the server leaves."""
        self._leaving = True
        for call in list(self._open):
            call.scope.cancel()
