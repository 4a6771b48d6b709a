"""The bounds of one connection: how many there are, how long a header may take, and when a peer is dead.

The HTTP server itself has no timer for a peer that says nothing, or half a header.
"""

import asyncio
import socket
from contextlib import suppress

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_CONNECTIONS = 800
"""How many connections there may be: a further one is closed at once, and the others are not affected."""
HEADER_SECONDS = 10.0
"""How long a peer may take from its connection, or from the first byte of a request, to the header's end."""
MAX_HEADER_BYTES = 64 << 10
DEAD_SECONDS = 60
"""How long a peer may leave what was sent to it unconfirmed, or unread, before the connection is cut."""


class BoundedProtocol(H11Protocol):
    """HTTP/1.1 on one connection, with bounds for peers that are slow, silent or gone."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as its base
        """Begin, unless there are too many connections."""
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()
            return
        _notice_death(transport.get_extra_info("socket"))
        self._look_at_header()

    def data_received(self, data: bytes) -> None:
        """Take what has come."""
        super().data_received(data)
        self._look_at_header()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._forget_deadline()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Go on with what came behind the request."""
        super().on_response_complete()
        if self.conn.trailing_data[0]:
            self._look_at_header()

    def _look_at_header(self) -> None:
        """Set the time for a header that has not come whole, from its first byte on."""
        if self.conn.their_state is not h11.IDLE or self.transport.is_closing():
            self._forget_deadline()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(HEADER_SECONDS, self._too_slow)

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        self._deadline = None
        self.transport.close()


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
