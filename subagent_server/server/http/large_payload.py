"""Requests with a large payload: the payload goes to a file on the disk, and the rest on to the protocol."""

import asyncio
import tempfile
from collections.abc import AsyncIterator

from starlette.datastructures import MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from subagent_server.domain.limits import MAX_PAYLOAD_BYTES
from subagent_server.server.http.payload_scan import PayloadScan, TooLarge
from subagent_server.server.tools import LARGE_PAYLOAD

MAX_REST_BYTES = 4 << 20
"""How large a request may be without its payload."""
MAX_BODY_BYTES = 2 * MAX_PAYLOAD_BYTES + MAX_REST_BYTES
"""How large it may be as it is sent: JSON writes some characters longer than they are."""
IN_MEMORY_BYTES = 1 << 20
"""A request up to this size is passed on as it is."""
MAX_AT_ONCE = 8
"""How many large requests may be on their way."""


class LargePayloads:
    """Takes the payload out of each large request to `app`, so that nothing large is ever in memory."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, without its payload if it is large, or refuse it."""
        if scope["method"] != "POST":
            return await self._app(scope, receive, send)
        pieces = _pieces(receive)
        begin = b""
        async for piece in pieces:
            begin += piece
            if len(begin) > IN_MEMORY_BYTES:
                return await self._large(begin, pieces, scope, receive, send)
        return await self._app(scope, _replayed(begin, receive), send)

    async def _large(
        self, begin: bytes, pieces: AsyncIterator[bytes], scope: Scope, receive: Receive, send: Send
    ) -> None:
        if self._under_way >= MAX_AT_ONCE:
            return await _refusal(503, "Too many large requests are on their way: try again soon.")(
                scope, receive, send
            )
        self._under_way += 1
        try:
            file = tempfile.TemporaryFile()  # noqa: SIM115 - its last user closes it: a call may outlive this
            rest = await _scanned(begin, pieces, scan := PayloadScan(file, MAX_PAYLOAD_BYTES))
        except TooLarge:
            told = (
                f"A request may have {MAX_PAYLOAD_BYTES:,} bytes of payload and {MAX_REST_BYTES:,} besides: "
                "leave the rest in files, and name them."
            )
            return await _refusal(413, told)(scope, receive, send)
        except ValueError as error:
            return await _refusal(400, f"The request is not JSON ({error}).")(scope, receive, send)
        finally:
            self._under_way -= 1
        inner = dict(scope)
        inner["headers"] = list(scope["headers"])
        MutableHeaders(scope=inner)["content-length"] = str(len(rest))
        if scan.found:
            file.seek(0)
            inner[LARGE_PAYLOAD] = file
        return await self._app(inner, _replayed(rest, receive), send)


async def _scanned(begin: bytes, pieces: AsyncIterator[bytes], scan: PayloadScan) -> bytes:
    """Return a request without its payload, which `scan` has written.

    Raises:
        TooLarge, ValueError, OSError.
    """
    size = len(begin)
    await asyncio.to_thread(scan.feed, begin)
    async for piece in pieces:
        size += len(piece)
        if size > MAX_BODY_BYTES:
            raise TooLarge
        await asyncio.to_thread(scan.feed, piece)
        if len(scan.rest) > MAX_REST_BYTES:
            raise TooLarge
    return bytes(scan.rest)


async def _pieces(receive: Receive) -> AsyncIterator[bytes]:
    """Yield the body of a request; of a client that goes away, what has come of it."""
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return
        yield message.get("body", b"")
        if not message.get("more_body", False):
            return


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives this body, and then what comes behind it."""
    given = False

    async def replay() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


def _refusal(status: int, sentence: str) -> JSONResponse:
    return JSONResponse({"error": sentence}, status, headers={"connection": "close"})
