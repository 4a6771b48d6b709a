"""Access over HTTP: a request must name this server, have no foreign origin, and bring a parent's token."""

from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from subagent_server.domain.errors import SubagentError
from subagent_server.server.http.log_lines import write_line

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
OPEN_PATHS = frozenset({"/healthz", "/"})
PAGE_PATHS = "/page/"
"""The paths that need no token: the page lets browsers in by sessions of its own."""
MAX_TOKEN_CHARACTERS = 1_000
_DEFAULT_PORTS = {"http": 80, "https": 443}

ParentOf = Callable[[bytes], str | None]
"""Returns the name of the parent whose token it is given, or None."""


def refusal(status: int, sentence: str, headers: dict[str, str] | None = None) -> Response:
    """Return the answer to a request that is refused before it is read; the connection ends with it."""
    return JSONResponse({"error": sentence}, status, headers={"connection": "close", **(headers or {})})


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
        headers = Headers(scope=scope)
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        here = _place(f"//{hosts[0]}") if len(hosts) == 1 else None
        if here is None or here[0] not in self._hosts:
            answer = refusal(
                421,
                "Host does not name this server: use the address that it was started with, or allow the name "
                "with --allow-host.",
            )
            return await answer(scope, receive, send)
        if origins and (len(origins) > 1 or not _is_same(origins[0], here)):
            answer = refusal(403, "Origin is another page's: only pages of this server may send requests.")
            return await answer(scope, receive, send)
        return await self._app(scope, receive, send)


def _place(address: str) -> tuple[str, int | None] | None:
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
    place, scheme = _place(origin), origin.partition(":")[0]
    if place is None or scheme not in _DEFAULT_PORTS:
        return False
    default = _DEFAULT_PORTS[scheme]
    return (place[0], place[1] or default) == (here[0], here[1] or default)


class TokenGate:
    """Refuses requests without the token of a parent, before anything of their body is read."""

    def __init__(self, app: ASGIApp, parent_of: ParentOf) -> None:
        self._app = app
        self._parent_of = parent_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, in the name of its parent, or refuse it."""
        if scope["path"] in OPEN_PATHS or scope["path"].startswith(PAGE_PATHS):
            return await self._app(scope, receive, send)
        try:
            parent = self._parent(Headers(scope=scope).getlist("authorization"))
        except SubagentError as error:  # the file of tokens: its owner has to hear of it
            write_line({"level": "error", "message": error.sentence})
            parent = None
        if parent is None:
            answer = refusal(
                401,
                "This needs the token of a parent: send Authorization: Bearer TOKEN.",
                {"www-authenticate": "Bearer"},
            )
            return await answer(scope, receive, send)
        scope["user"] = AuthenticatedUser(AccessToken(token="-", client_id=parent, scopes=[]))
        return await self._app(scope, receive, send)

    def _parent(self, authorizations: list[str]) -> str | None:
        if len(authorizations) != 1:
            return None
        scheme, _, token = authorizations[0].partition(" ")
        if scheme.lower() != "bearer" or not 0 < len(token) <= MAX_TOKEN_CHARACTERS:
            return None
        return self._parent_of(token.strip().encode("latin-1"))


def parent_of(scope: Scope) -> str | None:
    """Return the name of the parent of a request, or None if none is needed here."""
    user = scope.get("user")
    return user.access_token.client_id if isinstance(user, AuthenticatedUser) else None
