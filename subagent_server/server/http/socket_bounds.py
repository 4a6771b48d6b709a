"""The bounds of connections: how many there are, how long they may be a stranger's, and when a peer is dead.

The HTTP server itself has no timer for a peer that says nothing, or half a header, and accepts connections
until it has no descriptor left. Peers of which nothing is known yet have bounds of their own, so that they
cannot take the place of others; a peer with a token may do what the user may.
"""

import asyncio
import resource
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

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
"""The key of a request's scope with the function that says that its peer may come in."""

IsWelcome = Callable[[socket.socket], bool]


def max_connections() -> int:
    """Return how many connections there may be with the descriptors that this process has."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if descriptors < 0 else max(2, min(MAX_CONNECTIONS, descriptors - OWN_DESCRIPTORS))


class BoundedProtocol(H11Protocol):
    """HTTP/1.1 on one connection, with bounds for peers that are unknown or gone.

    A peer that is not welcome is not heard at all.
    """

    def __init__(self, *arguments: Any, is_welcome: IsWelcome | None = None, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._is_welcome = is_welcome
        self._is_known = False

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
        self.loop.call_later(SETTLE_SECONDS, self._leave_if_too_many)
        self.loop.call_later(STRANGER_SECONDS, self._leave_if_unknown)
        return None

    def _introduced(self, app: Any) -> Any:
        async def introduced(scope: Any, receive: Any, send: Any) -> None:
            scope[ADMIT] = self._admit
            await app(scope, receive, send)

        return introduced

    def _admit(self) -> None:
        self._is_known = True

    def _strangers(self) -> list["BoundedProtocol"]:
        every = (each for each in self.connections if isinstance(each, BoundedProtocol))
        return [each for each in every if not (each._is_known or each.transport.is_closing())]

    def _leave_if_too_many(self) -> None:
        if not self._is_known and len(self._strangers()) > MAX_STRANGERS:
            self.transport.abort()

    def _leave_if_unknown(self) -> None:
        if not self._is_known:
            self.transport.abort()


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
