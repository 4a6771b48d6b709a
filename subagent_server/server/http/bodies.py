"""The bodies of requests: read whole before any other layer looks, within bounds of size and time.

A body that is still coming lies on the disk as soon as it is large, so slow senders cost no memory. The
payload of a large body stays there, and the application gets the rest.
"""

import asyncio
from dataclasses import dataclass
from tempfile import SpooledTemporaryFile, TemporaryFile
from typing import BinaryIO

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from subagent_server.domain.limits import MAX_PAYLOAD_BYTES
from subagent_server.server.http.gates import CODE_PATH, PAGE_PATHS, refusal
from subagent_server.server.http.payload_scan import MAX_PARTS, PayloadScan, TooLarge
from subagent_server.server.tools import LARGE_PAYLOAD

MAX_BODY_BYTES = 96 << 20
"""A payload of 64 MiB and its framing: JSON writes some characters as several."""
MAX_BYTES_AT_ONCE = 256 << 20
"""How much the bodies of all requests may hold together while these are being answered."""
MAX_REST_BYTES = 8 << 20
"""The same without the payload: this much is in memory."""
IN_MEMORY_BYTES = 1 << 20
PIECE_BYTES = 64 << 10
PAUSE_SECONDS = 10.0
BODY_SECONDS = 120.0
"""How long a body may pause, and how long all of it may take."""
MAX_PAGE_BYTES = 1 << 20
"""A change that the page sends."""
MAX_CODE_BYTES = 4 << 10
CODE_SECONDS = 5.0
"""The bounds of the one body that is read without a token: that of a browser with its code."""


class BodyBounds:
    """Gives the application a body that has come whole, or refuses the request."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on when its body is here."""
        if scope["method"] in {"GET", "HEAD", "DELETE"}:
            return await self._app(scope, receive, send)
        most, seconds = _bounds(scope["path"])
        if _declared_size(scope) > most:
            return await _too_large(most)(scope, receive, send)
        with SpooledTemporaryFile(IN_MEMORY_BYTES) as spool:
            try:
                async with asyncio.timeout(seconds):
                    fits = await _spooled(receive, spool, most)
            except TimeoutError:
                answer = refusal(408, "The body came too slowly: send the request again.")
                return await answer(scope, receive, send)
            except ClientDisconnect:
                return None
            except OSError as error:
                return await _cannot_keep(error)(scope, receive, send)
            size = spool.tell()
            if not fits:
                return await _too_large(most)(scope, receive, send)
            if self._held + size > MAX_BYTES_AT_ONCE:
                answer = refusal(503, "Too many large requests at once: send it again.", {"retry-after": "1"})
                return await answer(scope, receive, send)
            self._held += size
            try:
                await self._pass_on(spool, size, scope, receive, send)
            finally:
                self._held -= size
        return None

    async def _pass_on(
        self, spool: "SpooledTemporaryFile[bytes]", size: int, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Pass a request on, without its payload if its body is large; the spool is closed before that."""
        spool.seek(0)
        try:
            with spool:
                is_small = size <= IN_MEMORY_BYTES
                body = _Body(spool.read()) if is_small else await asyncio.to_thread(_without_payload, spool)
        except (TooLarge, ValueError) as error:
            return await _unfit(error)(scope, receive, send)
        except OSError as error:
            return await _cannot_keep(error)(scope, receive, send)
        return await self._app(_with(scope, body), _replayed(body.rest, receive), send)


def _bounds(path: str) -> tuple[int, float]:
    """Return how many bytes the body of a request may have, and how many seconds it may take."""
    if path == CODE_PATH:
        return MAX_CODE_BYTES, CODE_SECONDS
    return MAX_PAGE_BYTES if path.startswith(PAGE_PATHS) else MAX_BODY_BYTES, BODY_SECONDS


def _declared_size(scope: Scope) -> int:
    declared = Headers(scope=scope).get("content-length", "")
    return int(declared) if declared.isdecimal() and len(declared) < 20 else 0


@dataclass(frozen=True)
class _Body:
    """A body, or the rest of a large one beside its payload, which its last user closes: a call goes on."""

    rest: bytes
    payload: BinaryIO | None = None


def _without_payload(spool: "SpooledTemporaryFile[bytes]") -> _Body:
    """Return a body whose payload is in a file. Raises TooLarge, ValueError, OSError."""
    file = TemporaryFile()  # noqa: SIM115 - see `_Body`
    scan = PayloadScan(file, MAX_PAYLOAD_BYTES)
    while piece := spool.read(PIECE_BYTES):
        scan.feed(piece)
        if len(scan.rest) > MAX_REST_BYTES:
            raise TooLarge
    file.flush()
    return _Body(bytes(scan.rest), file if scan.found else None)


def _with(scope: Scope, body: _Body) -> Scope:
    """Return the scope of a request that has this body."""
    if body.payload is None:
        return scope
    inner = {**scope, "headers": list(scope["headers"]), LARGE_PAYLOAD: body.payload}
    MutableHeaders(scope=inner)["content-length"] = str(len(body.rest))
    return inner


def _cannot_keep(error: OSError) -> Response:
    return refusal(503, f"The body cannot be kept ({error.strerror}): try again later.")


def _unfit(error: TooLarge | ValueError) -> Response:
    if isinstance(error, ValueError):
        return refusal(400, f"The body is not JSON ({error}): mend it.")
    return refusal(
        413,
        f"A payload may have {MAX_PAYLOAD_BYTES >> 20} MiB, and the rest of a body "
        f"{MAX_REST_BYTES >> 20} MiB in {MAX_PARTS:,} parts: leave more in files, and name them.",
    )


def _too_large(most: int) -> Response:
    return refusal(413, f"The body is larger than {most >> 10:,} KiB: send less at once.")


async def _spooled(receive: Receive, spool: "SpooledTemporaryFile[bytes]", most: int) -> bool:
    """Write a body to the spool; False if it is too large. Raises TimeoutError, ClientDisconnect."""
    more = True
    while more:
        async with asyncio.timeout(PAUSE_SECONDS):
            message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        spool.write(message.get("body", b""))
        if spool.tell() > most:
            return False
        more = message.get("more_body", False)
    return True


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return the receiver of a request whose body has come."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return messages.pop() if messages else await receive()

    return receive_again
