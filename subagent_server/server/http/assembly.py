"""The HTTP application: its routes, and the layers around all of them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mcp.server.streamable_http_manager import StreamableHTTPASGIApp
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from subagent_server.domain.errors import CallerError, SubagentError, UnknownRun
from subagent_server.server.http.bad_messages import BadMessages
from subagent_server.server.http.bodies import BodyBounds
from subagent_server.server.http.gates import HostGate, KnowsBrowser, ParentOf, TokenGate
from subagent_server.server.http.sessions import McpSessions
from subagent_server.server.http.socket_bounds import IsWelcome
from subagent_server.server.http.traffic import Traffic


@dataclass(frozen=True)
class Access:
    """The access rules: allowed hosts, who knows tokens (`parent_of` None: parents need none), and peers."""

    hosts: Iterable[str]
    parent_of: ParentOf | None
    knows_browser: KnowsBrowser | None = None
    is_welcome: IsWelcome | None = None


def assemble(
    sessions: McpSessions, access: Access, traffic: Traffic, routes: Sequence[BaseRoute] = ()
) -> ASGIApp:
    """Return the application: MCP at `/mcp`, the routes, and the layers that look at each request first."""
    app: ASGIApp = Starlette(
        routes=[
            Route("/mcp", BadMessages(StreamableHTTPASGIApp(sessions))),
            Route("/healthz", _health, methods=["GET"]),
            Route("/metrics", traffic.metrics, methods=["GET"]),
            *routes,
        ],
        exception_handlers={SubagentError: _refused},
    )
    app = TokenGate(BodyBounds(app), access.parent_of, access.knows_browser)
    return traffic.around(HostGate(app, access.hosts))


async def _refused(_: Request, error: Exception) -> JSONResponse:
    """Answer with the sentence of what a verb refuses."""
    status = 404 if isinstance(error, UnknownRun) else 400 if isinstance(error, CallerError) else 500
    sentence = error.sentence if isinstance(error, SubagentError) else str(error)
    return JSONResponse({"error": sentence}, status, headers={"cache-control": "no-store"})


async def _health(_: Request) -> JSONResponse:
    return JSONResponse({"status": "ok"})
