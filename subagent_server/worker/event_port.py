"""`POST .../subagent-events`: the programs of a run report their subagents here (SPEC section 8).

A loopback port of the worker with an unguessable path. The port takes small JSON bodies, a few at a time,
each with a deadline, and so never holds up the run. A connection may send one after the other. Any user of
the machine can connect: if there are too many connections, the oldest of those that have not named the right
path, or have nothing to send, is cut off.
"""

import asyncio
import secrets
from collections.abc import Callable

from subagent_server.domain.subagent_events import ForeignEvent

VARIABLES = ("SUBAGENT_LOGGING_ADDRESS", "CPE_SUBAGENT_LOGGING_ADDRESS")
BUFFER_BYTES = 8 * 1024
"""Of one connection: twice as much is parsed, at most, before others get their turn."""
MAX_CONNECTIONS = 32
DEADLINE_SECONDS = 10.0


class EventPort:
    """Listens as long as its run works. `write` gets each event."""

    def __init__(self, write: Callable[[ForeignEvent], None]) -> None:
        self._write = write
        self._path = f"/{secrets.token_urlsafe(24)}"
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.StreamWriter] = set()
        self._strangers: dict[asyncio.StreamWriter, None] = {}
        """The connections that have not named the path for their next request yet, oldest first."""
        self.address = ""
        """Where to post, without `/subagent-events`; empty until the port is open."""

    async def open(self) -> None:
        """Begin to listen.

        Raises:
            OSError: the system gives no port.
        """
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=BUFFER_BYTES)
        port = self._server.sockets[0].getsockname()[1]
        self.address = f"http://127.0.0.1:{port}{self._path}"

    def close(self) -> None:
        """Stop listening, and cut the open connections off."""
        if self._server is not None:
            self._server.close()
        for writer in self._connections:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # h11 is theirs: most runs never need it.
        from subagent_server.worker.event_request import take_event
        from subagent_server.worker.http_exchange import HttpExchange

        self._connections.add(writer)
        self._strangers[writer] = None
        self._make_room(writer)
        is_full = len(self._connections) > MAX_CONNECTIONS
        named = lambda: self._strangers.pop(writer, None)  # noqa: E731
        exchange, goes_on = HttpExchange(reader, writer), True
        try:
            while goes_on:
                async with asyncio.timeout(DEADLINE_SECONDS):
                    goes_on = await take_event(exchange, self._path, self._write, named, is_full=is_full)
                self._strangers[writer] = None
                await asyncio.sleep(0)  # requests that came together do not keep the run from its work
        except (OSError, TimeoutError, EOFError):
            pass  # the client has left, or is silent: no answer can reach it
        finally:
            self._forget(writer)
            writer.close()

    def _make_room(self, newcomer: asyncio.StreamWriter) -> None:
        oldest = next(iter(self._strangers))
        if len(self._connections) > MAX_CONNECTIONS and oldest is not newcomer:
            oldest.transport.abort()
            self._forget(oldest)

    def _forget(self, writer: asyncio.StreamWriter) -> None:
        self._connections.discard(writer)
        self._strangers.pop(writer, None)
