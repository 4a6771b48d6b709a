"""The bodies of requests: read whole before anybody else looks, within bounds of size and time.

A body that is still coming lies on the disk as soon as it is large, so slow senders cost no memory.
"""

import asyncio
from tempfile import SpooledTemporaryFile

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from subagent_server.server.http.gates import refusal

MAX_BODY_BYTES = 96 << 20
"""A payload of 64 MiB and its framing: JSON writes some characters as several."""
MAX_BYTES_AT_ONCE = 256 << 20
"""How much the bodies of all requests may hold together while these are being answered."""
IN_MEMORY_BYTES = 1 << 20
PAUSE_SECONDS = 10.0
BODY_SECONDS = 120.0
"""How long a body may pause, and how long all of it may take."""


class BodyBounds:
    """Gives the application a body that has come whole, or refuses the request."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on when its body is here."""
        if scope["method"] in {"GET", "HEAD", "DELETE"}:
            return await self._app(scope, receive, send)
        if _declared_size(scope) > MAX_BODY_BYTES:
            return await _too_large(scope, receive, send)
        with SpooledTemporaryFile(IN_MEMORY_BYTES) as spool:
            try:
                async with asyncio.timeout(BODY_SECONDS):
                    fits = await _spooled(receive, spool)
            except TimeoutError:
                answer = refusal(408, "The body came too slowly: send the request again.")
                return await answer(scope, receive, send)
            except ClientDisconnect:
                return None
            except OSError as error:
                answer = refusal(503, f"The body cannot be kept ({error.strerror}): try again later.")
                return await answer(scope, receive, send)
            size = spool.tell()
            if not fits:
                return await _too_large(scope, receive, send)
            if self._held + size > MAX_BYTES_AT_ONCE:
                answer = refusal(503, "Too many large requests at once: send it again.", {"retry-after": "1"})
                return await answer(scope, receive, send)
            spool.seek(0)
            body = spool.read()
        self._held += size
        try:
            return await self._app(scope, _replayed(body, receive), send)
        finally:
            self._held -= size


def _declared_size(scope: Scope) -> int:
    declared = Headers(scope=scope).get("content-length", "")
    return int(declared) if declared.isdecimal() and len(declared) < 20 else 0


_too_large = refusal(413, f"The body is larger than {MAX_BODY_BYTES >> 20} MiB: send less at once.")


async def _spooled(receive: Receive, spool: "SpooledTemporaryFile[bytes]") -> bool:
    """Write a body to the spool; False if it is too large. Raises TimeoutError, ClientDisconnect."""
    more = True
    while more:
        async with asyncio.timeout(PAUSE_SECONDS):
            message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        spool.write(message.get("body", b""))
        if spool.tell() > MAX_BODY_BYTES:
            return False
        more = message.get("more_body", False)
    return True


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return the receiver of a request whose body has come."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return messages.pop() if messages else await receive()

    return receive_again
