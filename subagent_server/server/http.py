"""The MCP server over HTTP: its application, served until a signal asks it to end. Then streams end first."""

import asyncio
import errno
import logging
import os
import re
import secrets
import signal
import socket
import sys
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn, cast

import anyio
import mcp_types as types
import uvicorn
from mcp.server.auth.middleware.bearer_auth import AuthorizationContext
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel import Server
from mcp.server.streamable_http import (
    GET_STREAM_KEY,
    MCP_SESSION_ID_HEADER,
    EventCallback,
    EventMessage,
    EventStore,
    StreamableHTTPServerTransport,
)
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from subagent_server.run.errors import CallerError, SubagentError, UnknownRun, with_commands
from subagent_server.server.batches import Messages
from subagent_server.server.connection import (
    LEFT,
    ClientConnection,
    SharedByClients,
    build_server,
    prepare_loop,
)
from subagent_server.server.http_access import (
    ACCEPTED_AT_ONCE,
    MAX_BODY_BYTES,
    MAX_HEADER_BYTES,
    BodyBounds,
    BoundedProtocol,
    Forwarding,
    HostGate,
    TokenGate,
    parent_of,
)
from subagent_server.server.notifications import is_modern
from subagent_server.server.page.page_app import PageApp
from subagent_server.server.resources import Context
from subagent_server.server.sockets import BACKLOG, HttpDoor, Welcome
from subagent_server.settings import Role
from subagent_server.verbs.access import Caller
from subagent_server.verbs.access_tokens import PageAccess
from subagent_server.verbs.end_run import StoredPayload, open_payload
from subagent_server.verbs.service import Service

MAX_OPEN = 2_000
"""How many requests may have no answer at once."""
FINISH_SECONDS = 1.0
"""How long calls that do not wait may still be answered when the server leaves."""
CLOSE_SECONDS = 2.5
"""How long clients may take to read their last answers before their connections are cut."""
KEEP_ALIVE_SECONDS = 65
_POLL_SECONDS = 0.02
_REPEAT_SECONDS = 60.0
_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
AGENTS_SECONDS = 1.0
"""How long the agent files are taken to be as they were, because each session asks for them every 2 s.

Without it 200 idle sessions take 50 % of a core with 500 agents, and 11 % with 60, instead of 3 and 5."""
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
CHUNK_BYTES = 256 << 10
_CODING = re.compile(r"\s*([^\s;,]+)\s*(?:;\s*q\s*=\s*([0-9.]+)\s*)?", re.ASCII)


async def serve_http(
    service: Service,
    role: Role,
    caller: Caller,
    door: HttpDoor,
    browsers: PageAccess | None,
) -> NoReturn:
    """Serve clients at a door until SIGINT or SIGTERM, then exit with code 0, within 5 s of that.

    `browsers` are those that may open the page; None: there is no page.

    Nothing of a run lives here, so nobody waits for threads that are still in the middle of a verb.
    """
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", force=True)
    prepare_loop(service)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_Complaints())
    leaving = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, leaving.set)
    clients = HttpClients(service, role, caller)
    sample = clients.made(None)
    sample.read_ahead()
    server = build_server(clients.of, sample)
    sessions = McpSessions(server, clients.end_session)
    calls = OpenCalls()
    server.middleware.insert(0, calls)
    server.get_tool_input_schema = lambda _: None  # no tool takes arguments from headers: nothing to compare
    page = None if browsers is None else PageApp(service, caller, browsers, clients.shared.runs)
    routes = [payload_route(service, clients.caller_of), *([] if page is None else page.routes)]
    http = HttpServer(assemble(sessions, door, browsers, routes), door.is_welcome)
    async with sessions.run():
        serving = asyncio.create_task(http.serve([door.listener]))
        left = asyncio.create_task(leaving.wait())
        await asyncio.wait([serving, left], return_when=asyncio.FIRST_COMPLETED)
        # 1. No new peer is admitted, and the streams of changes end, as the protocol has it.
        http.accept_no_more()
        clients.end_streams()
        if page is not None:
            page.end()
        # 2. Calls that do not wait for runs are still answered; then all others, with an error.
        with anyio.move_on_after(FINISH_SECONDS):
            while calls.count > clients.waiting:
                await anyio.sleep(_POLL_SECONDS)
        calls.end_all()
        with anyio.move_on_after(FINISH_SECONDS):
            while calls.count:
                await anyio.sleep(_POLL_SECONDS)
        # 3. The sessions end with their streams, and connections when their last answers are read.
        await sessions.end_all()
        await http.close(CLOSE_SECONDS)
        await serving
    door.close()
    os._exit(0)  # a thread that still waits would delay the exit


def assemble(
    sessions: "McpSessions", door: HttpDoor, browsers: PageAccess | None, routes: Sequence[BaseRoute] = ()
) -> ASGIApp:
    """Return the application: MCP at `/mcp`, the routes, and the layers that look at each request first."""
    endpoint = StreamableHTTPASGIApp(sessions)
    app = Starlette(
        routes=[
            Route("/mcp", endpoint),
            Route("/mcp/", endpoint),  # no redirect, whose address would have to be that of a proxy
            Route("/healthz", _health, methods=["GET"]),
            *routes,
        ],
        exception_handlers={SubagentError: _refused},
    )
    app.router.redirect_slashes = False
    welcomed = TokenGate(BodyBounds(Messages(app)), door.token_file, browsers)
    return Forwarding(HostGate(welcomed, door.hosts), door.proxies)


async def _refused(_: Request, error: Exception) -> JSONResponse:
    """Answer a page with the sentence of what a verb refuses."""
    status = 404 if isinstance(error, UnknownRun) else 400 if isinstance(error, CallerError) else 500
    sentence = error.sentence if isinstance(error, SubagentError) else str(error)
    return JSONResponse({"error": with_commands(sentence)}, status, headers={"cache-control": "no-store"})


async def _health(_: Request) -> JSONResponse:
    return JSONResponse({"status": "ok"})


class HttpServer(uvicorn.Server):
    """The HTTP server, without handlers of signals: `close` ends it. It reads from welcome peers alone."""

    def __init__(self, app: ASGIApp, is_welcome: Welcome | None = None) -> None:
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
                log_level="error",  # else every peer without a token could write lines of warnings
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


class _Complaints:
    """Logs what the event loop complains of; connections that find no room, once a minute."""

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
        """Answer every open request with an error: the server is leaving."""
        self._leaving = True
        for scope in list(self._open):
            scope.cancel()


class HttpClients:
    """Finds the connection that a request belongs to, made with the first request of its client.

    Each session of the older era has a connection, and of the newer era each parent.
    """

    def __init__(self, service: Service, role: Role, caller: Caller) -> None:
        service.registry.keep_for(AGENTS_SECONDS)
        self._service = service
        self._role = role
        self._caller = caller
        self.shared = SharedByClients(service, caller)
        self._connections: dict[tuple[str, str | None], ClientConnection] = {}

    def of(self, context: Context) -> ClientConnection:
        """Return the connection of a request."""
        request = context.request
        assert isinstance(request, Request)
        parent = parent_of(request.scope)
        key = (
            ("parent", parent) if is_modern(context) else ("session", request.headers[MCP_SESSION_ID_HEADER])
        )
        if key not in self._connections:
            self._connections[key] = self.made(parent)
        return self._connections[key]

    def made(self, parent: str | None) -> ClientConnection:
        """Return a new connection of a parent."""
        return ClientConnection(self._service, self._role, self._as(parent), self.shared)

    def caller_of(self, request: Request) -> Caller:
        """Return the caller of a request."""
        return self._as(parent_of(request.scope))

    def end_session(self, session: str) -> None:
        """Forget the connection of a session that has ended."""
        connection = self._connections.pop(("session", session), None)
        if connection is not None:
            connection.close()

    def _as(self, parent: str | None) -> Caller:
        return replace(self._caller, parent=parent)

    @property
    def waiting(self) -> int:
        """How many calls wait for runs."""
        return sum(connection.waiting for connection in self._connections.values())

    def end_streams(self) -> None:
        """End the streams of changes of all clients, as the protocol does it."""
        for connection in self._connections.values():
            connection.subscriptions.end_streams()


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
        while len(self._kept) > 1:  # a client that resumes its stream at this moment still awaits the newest
            first = next(iter(self._kept.values()))
            if len(self._kept) <= MAX_EVENTS and self._bytes <= MAX_EVENT_BYTES and first.at >= oldest:
                return
            self._kept.popitem(last=False)
            self._bytes -= len(first.text)


# -- `GET /api/agents/{agent_id}/payload`: the payload of an agent, passed on as it is stored, compressed.


def payload_route(service: Service, caller_of: Callable[[Request], Caller]) -> Route:
    """Return the route. `caller_of` returns in whose name a request comes."""

    async def payload(request: Request) -> Response:
        agent_id = request.path_params["agent_id"]
        try:
            stored = await asyncio.to_thread(open_payload, service, agent_id, caller_of(request))
        except CallerError as error:
            return JSONResponse({"error": error.sentence}, 404)
        answer = _answer_without_body(request, stored)
        if answer is not None:
            stored.file.close()
            return answer
        return StreamingResponse(_chunks(stored), headers=_headers(stored))

    return Route("/api/agents/{agent_id}/payload", payload, methods=["GET"])


def _answer_without_body(request: Request, stored: StoredPayload) -> Response | None:
    """Return the answer to a request that gets no payload, or None."""
    if not takes_gzip(request.headers.getlist("accept-encoding")):
        return JSONResponse({"error": "The payload comes compressed: send Accept-Encoding: gzip."}, 406)
    known = ",".join(request.headers.getlist("if-none-match"))
    if stored.tag in {tag.strip().removeprefix("W/") for tag in known.split(",")}:
        return Response(status_code=304, headers={"etag": stored.tag})
    return Response(headers=_headers(stored)) if request.method == "HEAD" else None


def _headers(stored: StoredPayload) -> dict[str, str]:
    return {
        "content-type": "text/plain; charset=utf-8",
        "content-encoding": "gzip",
        "content-length": str(stored.size),
        "etag": stored.tag,
        "vary": "Accept-Encoding",
        "cache-control": "private, no-cache",
        "x-content-type-options": "nosniff",
        "content-security-policy": "sandbox",
    }


def takes_gzip(headers: list[str]) -> bool:
    """Whether a client that sends these `Accept-Encoding` takes gzip."""
    taken: dict[str, bool] = {}
    for part in ",".join(headers).split(","):
        found = _CODING.fullmatch(part)
        if found is not None:
            taken[found[1].lower()] = found[2] is None or found[2].strip("0.") != ""
    return taken.get("gzip", taken.get("x-gzip", taken.get("*", False)))


async def _chunks(stored: StoredPayload) -> AsyncIterator[bytes]:
    """Yield what was stored, and no more, whatever is appended meanwhile."""
    left = stored.size
    try:
        while left and (chunk := await asyncio.to_thread(stored.file.read, min(left, CHUNK_BYTES))):
            left -= len(chunk)
            yield chunk
    finally:
        stored.file.close()
