"""The routes, and the layers around all of them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mcp.server.streamable_http_manager import StreamableHTTPASGIApp
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from subagent_server.server.http.gates import HostGate, ParentOf, TokenGate
from subagent_server.server.http.large_payload import LargePayloads
from subagent_server.server.http.sessions import McpSessions


@dataclass(frozen=True)
class Access:
    """Who may come in: for these hosts, with a token that `parent_of` knows (None: without any)."""

    hosts: Iterable[str]
    parent_of: ParentOf | None


def assemble(sessions: McpSessions, access: Access, routes: Sequence[BaseRoute] = ()) -> ASGIApp:
    """Return the application: MCP at `/mcp`, the routes, and the layers that look at each request first."""
    app: ASGIApp = Starlette(
        routes=[
            Route("/mcp", LargePayloads(StreamableHTTPASGIApp(sessions))),
            Route("/healthz", _health, methods=["GET"]),
            *routes,
        ]
    )
    if access.parent_of is not None:
        app = TokenGate(app, access.parent_of)
    return HostGate(app, access.hosts)


async def _health(_: Request) -> JSONResponse:
    return JSONResponse({"status": "ok"})
