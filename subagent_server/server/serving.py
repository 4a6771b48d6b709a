"""Serve one client over two descriptors, until the client leaves or the server does."""

import asyncio
from contextlib import suppress

import anyio
from mcp.shared.message import SessionMessage

from subagent_server.server.connection import ClientConnection, build_server
from subagent_server.server.stdio import Incoming, Outgoing, Reports

LEAVE_SECONDS = 0.15
"""How long calls that are being worked on may still be answered when the server leaves."""
REFUSE_SECONDS = 0.05
"""How long the client may take to read that all others are not answered."""
_POLL_SECONDS = 0.01


class Serving:
    """One client being served: `incoming` is read and `outgoing` is written, and neither is closed."""

    def __init__(self, connection: ClientConnection, incoming: int, outgoing: int, reports: Reports) -> None:
        """Begin. Needs a running loop."""
        self._connection = connection
        self._leaving = asyncio.Event()
        self._incoming = incoming
        self._reports = reports
        self._outgoing = Outgoing(outgoing, gone=self.leave, writing=connection.unanswered.writing)
        self._task = asyncio.create_task(self._serve())

    def leave(self) -> None:
        """Let `until_left` take no more requests, and return soon."""
        self._leaving.set()

    async def until_left(self) -> BaseException | None:
        """Serve until the client ends its input or `leave` is called; then answer whatever can be answered.

        Return the error that has ended it before, or None.
        """
        left = asyncio.create_task(self._leaving.wait())
        try:
            await asyncio.wait([self._task, left], return_when=asyncio.FIRST_COMPLETED)
        finally:
            left.cancel()
        if self._task.done() and (failure := self._task.exception()) is not None:
            return failure
        await self._let_finish()
        await self._refuse_the_rest()
        return None

    async def aclose(self) -> None:
        """End what goes on. The client's end must be closed before: a thread may wait until it is read."""
        self._task.cancel()
        await asyncio.wait([self._task])
        self._connection.close()

    async def _serve(self) -> None:
        connection = self._connection

        async def leave() -> None:
            self.leave()
            await anyio.sleep_forever()  # a stream that ends would cut the calls off that are being worked on

        server = build_server(lambda _: connection, connection)
        incoming = Incoming(
            self._incoming,
            at_end=leave,
            answer=self._outgoing.send,
            noted=connection.unanswered.note_read,
            is_full=lambda: connection.is_full,
            reports=self._reports,
        )
        await server.run(incoming, self._outgoing, server.create_initialization_options())

    async def _let_finish(self) -> None:
        """Wait, with a bound, until only calls that wait for runs have no answer yet."""
        with anyio.move_on_after(LEAVE_SECONDS):
            while self._connection.busy:
                await anyio.sleep(_POLL_SECONDS)

    async def _refuse_the_rest(self) -> None:
        """Answer each request that has no answer with an error. A client that does not read gets none."""

        async def send() -> None:
            with suppress(anyio.BrokenResourceError):
                for refusal in self._connection.unanswered.refusals():
                    await self._outgoing.send(SessionMessage(refusal))

        await asyncio.wait([asyncio.create_task(send())], timeout=REFUSE_SECONDS)
