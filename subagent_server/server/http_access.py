"""Access over HTTP: a request must name this server, have no foreign origin, bring a token, and a fit body.

The token is that of a parent, and for the addresses of the page the session of a browser. No byte of a body
is read before, but for the code that a browser exchanges for its session.
"""

import asyncio
import re
import resource
import socket
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from subagent_server.run.errors import SubagentError
from subagent_server.server.connection import BASE_URL
from subagent_server.server.sockets import Proxies, Welcome
from subagent_server.verbs.access_tokens import PageAccess, parent_by_token

MAX_CONNECTIONS = 800
OWN_DESCRIPTORS = 224
"""How many connections there may be; fewer, if less than this many descriptors were left for other work."""
ACCEPTED_AT_ONCE = 32
"""How many may be accepted before the first of them is counted."""
MAX_STRANGERS = 32
STRANGER_SECONDS = 10.0
"""How many connections may be open without a token, and how long each of them may be so."""
SETTLE_SECONDS = 0.25
"""How long a stranger may be one too many: it may have sent a request that is still to be read."""
MAX_HEADER_BYTES = 64 << 10
DEAD_SECONDS = 60
"""How long a peer may leave what was sent to it unconfirmed, or unread, before the connection is cut."""
ADMIT = "subagent.admit"
"""The key of a request's scope with the function that admits its peer."""
PAGE_PATHS = "/page/"
"""The paths of the page, which lets browsers in by sessions of its own."""
CODE_PATH = f"{PAGE_PATHS}session"
"""Where a browser exchanges its code."""
KNOCK_PATH = f"{PAGE_PATHS}server"
"""Where a server proves to a browser that it is still the one that made the session."""
OPEN_PATHS = frozenset({"/healthz", "/", KNOCK_PATH})
STATIC_PATHS = f"{PAGE_PATHS}static/"
"""The other paths that need no token; requests for them have no body."""
MAX_TOKEN_CHARACTERS = 1_000
MAX_BODY_BYTES = 20 << 20
"""A payload of 16 MiB and its framing: JSON writes some characters as several."""
MAX_BYTES_AT_ONCE = 256 << 20
"""How much the bodies of all requests may hold together while they come and while they are answered."""
MAX_PAGE_BYTES = 1 << 20
"""A change that the page sends."""
PAUSE_SECONDS = 10.0
BODY_SECONDS = 120.0
"""How long a body may pause, and how long all of it may take."""
MAX_CODE_BYTES = 4 << 10
CODE_SECONDS = 5.0
"""The bounds of the one body that is read without a token: that of a browser with its code."""
UNCOUNTED_BYTES = 1 << 20
MAX_PARTS = 100_000
"""How many values, names and marks a larger body may have: few bytes become large objects."""
_STRING = re.compile(rb'"[^"\\]*+(?>(?:\\.[^"\\]*+)*)"', re.DOTALL)
_DEFAULT_PORTS = {"http": 80, "https": 443}


class Forwarding:
    """Takes scheme and host of a request from a trusted proxy, and notes how addresses in its answer begin.

    Headers are believed from a trusted proxy only, and only their last value, which the proxy itself added.
    An address whose scheme is not known for certain is a path: no client is led from https to http.
    """

    def __init__(self, app: ASGIApp, proxies: Proxies) -> None:
        self._app = app
        self._proxies = proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, as the client has sent it to the proxy."""
        headers = Headers(scope=scope)
        came_by_proxy = any(name.startswith("x-forwarded-") or name == "forwarded" for name in headers)
        scheme: str | None = scope["scheme"]
        if came_by_proxy:
            is_trusted = self._proxies.trust(scope["client"])
            scheme = _last(headers, "x-forwarded-proto").lower() if is_trusted else None
            if is_trusted and (host := _last(headers, "x-forwarded-host")):
                others = [(name, value) for name, value in scope["headers"] if name != b"host"]
                scope = {**scope, "headers": [*others, (b"host", host.encode("latin-1"))]}
        host = Headers(scope=scope).get("host", "")
        found = _host_and_port(f"//{host}")
        is_certain = found is not None and (came_by_proxy or found[0] in self._proxies.own_names)
        known = f"{scheme}://{host}/" if scheme in _DEFAULT_PORTS and is_certain else "/"
        base = self._proxies.public_url or known
        await self._app({**scope, BASE_URL: base}, receive, send)


def _last(headers: Headers, name: str) -> str:
    return ",".join(headers.getlist(name)).rpartition(",")[2].strip()


class HostGate:
    """Refuses requests for other hosts, and those that pages of other origins send.

    A page whose name was bound to this address anew (DNS rebinding) names its own host. There is no CORS, so
    no page of another origin reads an answer.
    """

    def __init__(self, app: ASGIApp, hosts: Iterable[str]) -> None:
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        await (self._refusal(scope) or self._app)(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        here = _host_and_port(f"//{hosts[0]}") if len(hosts) == 1 else None
        came_to, _ = scope.get("server") or (None, None)  # the address itself, which no name can be bound to
        if here is None or here[0] not in {*self._hosts, came_to}:
            return refusal(
                421,
                "Host does not name this server: use the address that it was started with, or allow the name "
                "with --allow-host.",
            )
        if origins and (len(origins) > 1 or not _is_same(origins[0], here)):
            return refusal(403, "Origin is another page's: only pages of this server may send requests.")
        return None


def _host_and_port(address: str) -> tuple[str, int | None] | None:
    """Return host and port of an address, or None if it is not an address or has further parts."""
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        return None
    if not parts.hostname or parts.username is not None or parts.path or parts.query or parts.fragment:
        return None
    return parts.hostname, port


def _is_same(origin: str, here: tuple[str, int | None]) -> bool:
    """Whether an origin is that of the host and port that the request names."""
    found, scheme = _host_and_port(origin), origin.partition(":")[0]
    if found is None or scheme not in _DEFAULT_PORTS:
        return False
    default = _DEFAULT_PORTS[scheme]
    return (found[0], found[1] or default) == (here[0], here[1] or default)


class TokenGate:
    """Refuses requests without a token, before anything of their body is read.

    `token_file` is None if parents need no token; the page is for known browsers in any case. A connection
    whose request is admitted no longer counts as a stranger's.
    """

    def __init__(self, app: ASGIApp, token_file: Path | None, browsers: PageAccess | None) -> None:
        self._app = app
        self._token_file = token_file
        self._browsers = browsers
        self._complaint: str | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, in the name of its parent, or refuse it."""
        await (self._refusal(scope) or self._app)(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        path, headers = scope["path"], Headers(scope=scope)
        if path == CODE_PATH and scope["method"] == "POST":
            return None
        if path in OPEN_PATHS or path.startswith(STATIC_PATHS):
            has_body = "transfer-encoding" in headers or headers.get("content-length", "0") != "0"
            return refusal(413, "This takes no body: leave it out.") if has_body else None
        token = _token(headers.getlist("authorization"))
        if path.startswith(PAGE_PATHS):
            if token is None or self._browsers is None or not self._browsers.knows(token):
                return refusal(401, "This page is not open any more: run `subagent page` again.")
        elif self._token_file is not None:
            parent = None if token is None else self._parent(self._token_file, token)
            if parent is None:
                why = (
                    "This needs the token of a parent" if token is None else "The token is that of no parent"
                )
                sentence = (
                    f"{why}: send Authorization: Bearer TOKEN, as `subagent init CLIENT --http` writes it."
                )
                return refusal(401, sentence, {"www-authenticate": "Bearer"})
            scope["user"] = AuthenticatedUser(AccessToken(token="-", client_id=parent, scopes=[]))
        if (admit := scope.get(ADMIT)) is not None:
            admit()
        return None

    def _parent(self, file: Path, token: bytes) -> str | None:
        complaint, parent = None, None
        try:
            parent = parent_by_token(file, token)
        except SubagentError as error:  # the file of tokens: its owner has to know of it, once
            complaint = error.sentence
        if complaint not in (None, self._complaint):
            print(complaint, file=sys.stderr, flush=True)
        self._complaint = complaint
        return parent


def _token(authorizations: list[str]) -> bytes | None:
    if len(authorizations) != 1:
        return None
    scheme, _, token = authorizations[0].partition(" ")
    if scheme.lower() != "bearer" or not 0 < len(token) <= MAX_TOKEN_CHARACTERS:
        return None
    return token.strip().encode("latin-1")


def parent_of(scope: Scope) -> str | None:
    """Return the name of the parent of a request, or None if none is needed here."""
    user = scope.get("user")
    return user.access_token.client_id if isinstance(user, AuthenticatedUser) else None


class BodyBounds:
    """Passes the application a body that has come whole, within bounds of size and time."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on when its body is here, or refuse it."""
        if scope["method"] in {"GET", "HEAD", "DELETE"}:
            return await self._app(scope, receive, send)
        body = bytearray()
        try:
            try:
                refused = await self._read(scope, receive, body)
            except TimeoutError:
                refused = refusal(408, "The body came too slowly: send the request again.")
            whole: Message = {"type": "http.request", "body": body, "more_body": False}
            await (refused or self._app)(scope, first(whole, receive), send)
        except ClientDisconnect:
            pass
        finally:
            self._held -= len(body)
        return None

    async def _read(self, scope: Scope, receive: Receive, body: bytearray) -> Response | None:
        """Read a body; return the answer if it is refused. Raises TimeoutError, ClientDisconnect."""
        most, seconds = _bounds(scope["path"])
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isdecimal() and (len(declared) > 19 or int(declared) > most):
            return _too_large(most)
        more = True
        async with asyncio.timeout(seconds):
            while more:
                async with asyncio.timeout(PAUSE_SECONDS):
                    message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                piece = message.get("body", b"")
                body += piece
                self._held += len(piece)
                if len(body) > most:
                    return _too_large(most)
                if self._held > MAX_BYTES_AT_ONCE:
                    return refusal(
                        503, "Too many large requests at once: send it again.", {"retry-after": "1"}
                    )
                more = message.get("more_body", False)
        return await asyncio.to_thread(_too_many_parts, body) if len(body) > UNCOUNTED_BYTES else None


def _bounds(path: str) -> tuple[int, float]:
    """Return how many bytes the body of a request may have, and how many seconds it may take."""
    if path == CODE_PATH:
        return MAX_CODE_BYTES, CODE_SECONDS
    return MAX_PAGE_BYTES if path.startswith(PAGE_PATHS) else MAX_BODY_BYTES, BODY_SECONDS


def _too_large(most: int) -> Response:
    return refusal(413, f"The body is larger than {most >> 10:,} KiB: leave more in files, and name them.")


def _too_many_parts(body: bytearray) -> Response | None:
    marks = _STRING.sub(b"", body)
    if sum(marks.count(mark) for mark in (b",", b"[", b"{")) <= MAX_PARTS:
        return None
    return refusal(413, f"The body has more than {MAX_PARTS:,} parts: leave more in files, and name them.")


def first(message: Message, receive: Receive) -> Receive:
    """Return a receiver that returns a message before all others."""
    pending = [message]

    async def receive_next() -> Message:
        return pending.pop() if pending else await receive()

    return receive_next


def refusal(status: int, sentence: str, headers: dict[str, str] | None = None) -> Response:
    """Return the answer to a request that is refused before it is read; the connection ends with it."""
    return JSONResponse({"error": sentence}, status, headers={"connection": "close", **(headers or {})})


class BoundedProtocol(H11Protocol):
    """HTTP/1.1 on one connection, with bounds for peers that are unknown or gone.

    The HTTP server itself has no timer for a peer that sends nothing, or half a header, and accepts
    connections until it has no descriptor left. Peers of which nothing is known yet have bounds of their
    own, so that they cannot use up the connections of others; a peer with a token may do what the user may.
    From a peer that is not welcome nothing is read at all.
    """

    def __init__(self, *arguments: Any, is_welcome: Welcome | None = None, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._is_welcome = is_welcome
        self._is_known = False
        self._timers: list[asyncio.TimerHandle] = []

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as its base
        """Begin, unless the peer is not welcome or there is no room."""
        super().connection_made(transport)
        peer = transport.get_extra_info("socket")
        if self._is_welcome is not None and not self._is_welcome(peer):
            return transport.abort()
        self._since = self.loop.time()
        if len(self.connections) > max_connections():
            min(self._strangers(), key=lambda each: each._since).transport.abort()
        _notice_death(peer)
        self.app = self._introduced(self.app)
        self._timers = [
            self.loop.call_later(SETTLE_SECONDS, self._leave_if_too_many),
            self.loop.call_later(STRANGER_SECONDS, self.transport.abort),
        ]
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        """End; a timer would hold all of the connection for as long as a stranger may stay."""
        self._end_timers()
        super().connection_lost(exc)

    def _introduced(self, app: Any) -> Any:
        async def introduced(scope: Any, receive: Any, send: Any) -> None:
            scope[ADMIT] = self._admit
            await app(scope, receive, send)

        return introduced

    def _admit(self) -> None:
        self._is_known = True
        self._end_timers()

    def _end_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()

    def _strangers(self) -> list["BoundedProtocol"]:
        every = (each for each in self.connections if isinstance(each, BoundedProtocol))
        return [each for each in every if not (each._is_known or each.transport.is_closing())]

    def _leave_if_too_many(self) -> None:
        if len(self._strangers()) > MAX_STRANGERS:
            self.transport.abort()


def max_connections() -> int:
    """Return how many connections there may be with the descriptors that this process has."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if descriptors < 0 else max(2, min(MAX_CONNECTIONS, descriptors - OWN_DESCRIPTORS))


def _notice_death(peer: socket.socket | None) -> None:
    """Let the system find out that a peer is gone, or no longer reads."""
    if peer is None or peer.family == socket.AF_UNIX:
        return
    with suppress(OSError):
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, DEAD_SECONDS // 2)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, DEAD_SECONDS // 6)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_SECONDS * 1000)
