"""The MCP server over HTTP: its application, served until a signal asks it to end. Then streams end first."""

import asyncio
import errno
import logging
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, Protocol, cast

import anyio
import mcp_types as types
import uvicorn
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp
from mcp.shared.exceptions import MCPError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from subagent_server.domain.errors import CallerError, SubagentError, UnknownRun
from subagent_server.server.app import WARM_UP_SECONDS
from subagent_server.server.connection import LEFT, build_server
from subagent_server.server.http.clients import HttpClients
from subagent_server.server.http.gates import BodyBounds, HostGate, KnowsBrowser, ParentOf, TokenGate
from subagent_server.server.http.payload import payload_route
from subagent_server.server.http.sessions import McpSessions
from subagent_server.server.http.socket_bounds import (
    ACCEPTED_AT_ONCE,
    MAX_HEADER_BYTES,
    BoundedProtocol,
    IsWelcome,
)
from subagent_server.service.access import Caller
from subagent_server.service.context import Service
from subagent_server.settings import Role

Context = ServerRequestContext[Any, Any]
THREADS = 32
MAX_OPEN = 2_000
"""How many requests may have no answer at once."""
FINISH_SECONDS = 1.0
"""How long calls that do not wait may still be answered when the server leaves."""
CLOSE_SECONDS = 2.5
"""How long clients may take to read their last answers before their connections are cut."""
KEEP_ALIVE_SECONDS = 65
BACKLOG = 512
"""How many connections the system keeps until they are accepted."""
_POLL_SECONDS = 0.02
_REPEAT_SECONDS = 60.0
_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


@dataclass(frozen=True)
class Access:
    """The access rules: allowed hosts, who knows tokens (`parent_of` None: parents need none), and peers."""

    hosts: Iterable[str]
    parent_of: ParentOf | None
    knows_browser: KnowsBrowser | None = None
    is_welcome: IsWelcome | None = None


class AttachedPage(Protocol):
    """The page that people open in a browser: its addresses, and the end of its streams."""

    @property
    def routes(self) -> list[BaseRoute]:
        """Every address of the page."""

    def end(self) -> None:
        """End every stream, because the server leaves."""


def serve_http(
    service: Service,
    role: Role,
    caller: Caller,
    listener: socket.socket,
    access: Access,
    page: AttachedPage | None,
    leave: Callable[[], NoReturn],
) -> None:
    """Serve clients on a socket until SIGINT or SIGTERM, then `leave`, within 5 s of that.

    Nothing of a run lives here, so nobody waits for threads that are still in the middle of a verb.
    """
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", force=True)
    asyncio.run(_serve(service, role, caller, listener, access, page, leave))


async def _serve(
    service: Service,
    role: Role,
    caller: Caller,
    listener: socket.socket,
    access: Access,
    page: AttachedPage | None,
    leave: Callable[[], NoReturn],
) -> None:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(THREADS, thread_name_prefix="verb"))
    loop.set_exception_handler(_Complaints())
    loop.add_signal_handler(signal.SIGCHLD, service.launcher.reap)
    loop.call_later(WARM_UP_SECONDS, service.launcher.warm_up)
    leaving = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, leaving.set)
    clients = HttpClients(service, role, caller)
    alike = clients.made(None)
    alike.read_ahead()
    server = build_server(clients.of, alike)
    sessions = McpSessions(server, clients.end_session)
    calls = OpenCalls()
    server.middleware.insert(0, calls)
    server.get_tool_input_schema = lambda _: None  # no tool takes arguments from headers: nothing to compare
    routes = [payload_route(service, clients.caller_of), *([] if page is None else page.routes)]
    http = HttpServer(assemble(sessions, access, routes), access.is_welcome)
    async with sessions.run():
        serving = asyncio.create_task(http.serve([listener]))
        left = asyncio.create_task(leaving.wait())
        await asyncio.wait([serving, left], return_when=asyncio.FIRST_COMPLETED)
        http.accept_no_more()
        clients.end_streams()
        if page is not None:
            page.end()
        with anyio.move_on_after(FINISH_SECONDS):
            while calls.count > clients.waiting:
                await anyio.sleep(_POLL_SECONDS)
        calls.end_all()
        with anyio.move_on_after(FINISH_SECONDS):
            while calls.count:
                await anyio.sleep(_POLL_SECONDS)
        await sessions.end_all()
        await http.close(CLOSE_SECONDS)
        await serving
    leave()


def assemble(sessions: McpSessions, access: Access, routes: Sequence[BaseRoute] = ()) -> ASGIApp:
    """Return the application: MCP at `/mcp`, the routes, and the layers that look at each request first."""
    app: ASGIApp = Starlette(
        routes=[
            Route("/mcp", StreamableHTTPASGIApp(sessions)),
            Route("/healthz", _health, methods=["GET"]),
            *routes,
        ],
        exception_handlers={SubagentError: _refused},
    )
    return HostGate(TokenGate(BodyBounds(app), access.parent_of, access.knows_browser), access.hosts)


async def _refused(_: Request, error: Exception) -> JSONResponse:
    """Answer with the sentence of what a verb refuses."""
    status = 404 if isinstance(error, UnknownRun) else 400 if isinstance(error, CallerError) else 500
    sentence = error.sentence if isinstance(error, SubagentError) else str(error)
    return JSONResponse({"error": sentence}, status, headers={"cache-control": "no-store"})


async def _health(_: Request) -> JSONResponse:
    return JSONResponse({"status": "ok"})


class OpenCalls:
    """Counts the requests without an answer, and answers them with an error when the server leaves."""

    def __init__(self) -> None:
        self._open: set[anyio.CancelScope] = set()
        self._leaving = False

    @property
    def count(self) -> int:
        """How many requests have no answer."""
        return len(self._open)

    async def __call__(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Answer a message, unless the server leaves. Raises MCPError."""
        if ctx.request_id is None:
            return await call_next(ctx)
        if self._leaving or len(self._open) >= MAX_OPEN:
            raise MCPError(types.INTERNAL_ERROR, "The server has too much to do, or leaves: try again soon.")
        with anyio.CancelScope() as scope:
            self._open.add(scope)
            try:
                return await call_next(ctx)
            finally:
                self._open.discard(scope)
        raise MCPError(types.CONNECTION_CLOSED, LEFT)

    def end_all(self) -> None:
        """Answer every open request with the error that says that the server leaves."""
        self._leaving = True
        for scope in list(self._open):
            scope.cancel()


class _Complaints:
    """Says what the event loop complains of; of connections that find no room it says so once a minute."""

    def __init__(self) -> None:
        self._quiet_until = 0.0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in _NO_ROOM:
            return loop.default_exception_handler(context)
        if loop.time() >= self._quiet_until:
            self._quiet_until = loop.time() + _REPEAT_SECONDS
            sentence = f"Connections wait, as there is no room: {error.strerror}."
            print(sentence, file=sys.stderr, flush=True)
        return None


class HttpServer(uvicorn.Server):
    """The HTTP server, without handlers of signals: `close` ends it. It hears peers that are welcome."""

    def __init__(self, app: ASGIApp, is_welcome: IsWelcome | None = None) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=cast(Any, partial(BoundedProtocol, is_welcome=is_welcome)),
                backlog=ACCEPTED_AT_ONCE,
                h11_max_incomplete_event_size=MAX_HEADER_BYTES,
                loop="asyncio",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to the caller."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen; the queue gets longer when the loop has taken from it how many it may accept at once."""
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(BACKLOG)

    def accept_no_more(self) -> None:
        """Close the listeners; connections stay."""
        for server in self.servers:
            server.close()

    async def close(self, seconds: float) -> None:
        """Let the open answers end, for at most this long, then cut what is left."""
        self.should_exit = True
        with anyio.move_on_after(seconds):
            while self.server_state.tasks:
                await anyio.sleep(_POLL_SECONDS)
        for connection in list(self.server_state.connections):
            connection.transport.abort()
