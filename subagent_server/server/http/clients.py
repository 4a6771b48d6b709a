"""The clients over HTTP: a connection for each session of the older era, one for each parent of the newer."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

from mcp.server.context import ServerRequestContext
from mcp.server.streamable_http import MCP_SESSION_ID_HEADER
from starlette.requests import Request

from subagent_server.server.connection import ClientConnection, SharedByClients
from subagent_server.server.http.gates import parent_of
from subagent_server.server.notifications import is_modern
from subagent_server.service.access import Caller
from subagent_server.service.context import Service
from subagent_server.settings import Role

Context = ServerRequestContext[Any, Any]

AGENTS_SECONDS = 1.0
"""How long the agent files are taken to be as they were: hundreds of sessions ask for them."""


def request_of(context: Context) -> Request:
    """Return the HTTP request that a message came with."""
    assert isinstance(context.request, Request)
    return context.request


class HttpClients:
    """Finds the connection that a request belongs to, made with the first request of its client."""

    def __init__(self, service: Service, role: Role, caller: Caller) -> None:
        service.registry.keep_for(AGENTS_SECONDS)
        self._service = service
        self._role = role
        self._caller = caller
        self._shared = SharedByClients(service, caller)
        self._by_session: dict[str, ClientConnection] = {}
        self._by_parent: dict[str | None, ClientConnection] = {}

    def of(self, context: Context) -> ClientConnection:
        """Return the connection of a request."""
        parent = parent_of(request_of(context).scope)
        if is_modern(context):
            return self._by_parent.get(parent) or self._by_parent.setdefault(parent, self.made(parent))
        session = request_of(context).headers[MCP_SESSION_ID_HEADER]
        return self._by_session.get(session) or self._by_session.setdefault(session, self.made(parent))

    def made(self, parent: str | None) -> ClientConnection:
        """Return a new connection of a parent."""
        return ClientConnection(self._service, self._role, self._as(parent), self._shared)

    def caller_of(self, request: Request) -> Caller:
        """Return the caller of a request."""
        return self._as(parent_of(request.scope))

    def end_session(self, session: str) -> None:
        """Forget the connection of a session that has ended."""
        connection = self._by_session.pop(session, None)
        if connection is not None:
            connection.close()

    def _as(self, parent: str | None) -> Caller:
        return replace(self._caller, parent=parent)

    @property
    def waiting(self) -> int:
        """How many calls wait for runs."""
        return sum(connection.tools.waiting for connection in self._all())

    def end_streams(self) -> None:
        """End the streams of changes of all clients, as the protocol does it."""
        for connection in self._all():
            connection.subscriptions.end_streams()

    def _all(self) -> Iterator[ClientConnection]:
        return chain(self._by_parent.values(), self._by_session.values())
