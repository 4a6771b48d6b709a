"""`POST .../subagent-events`: where programs that a run has started tell of their subagents (SPEC section 8).

A loopback port of the worker with a path that nobody can guess. It takes small JSON bodies, a few at a time,
each with a deadline, so it never holds up the run. Any user of the machine can connect: if there are too many
connections, the oldest that has not named the path yet is cut off. Only what this takes of HTTP/1.1 is here.
"""

import asyncio
import hmac
import json
import secrets
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from pydantic import ValidationError

from subagent_server.domain.subagent_events import ForeignEvent

VARIABLES = ("SUBAGENT_LOGGING_ADDRESS", "CPE_SUBAGENT_LOGGING_ADDRESS")
MAX_BODY_BYTES = 256 * 1024
MAX_HEAD_BYTES = 16 * 1024
MAX_CONNECTIONS = 32
DEADLINE_SECONDS = 10.0
_ONCE = ("host", "content-length", "transfer-encoding")
_LOOPBACK = ("127.0.0.1", "localhost")


class Refused(Exception):
    """A request that is not taken: the status, and a sentence for whoever reads it."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status
        self.why = why


class EventPort:
    """Listens as long as its run works. `write` gets each event as facts of the journal."""

    def __init__(self, write: Callable[[dict[str, Any]], None]) -> None:
        self._write = write
        self._path = f"/{secrets.token_urlsafe(24)}"
        self._server: asyncio.Server | None = None
        self._talking: set[asyncio.StreamWriter] = set()
        self._strangers: dict[asyncio.StreamWriter, None] = {}
        """Those of them that have not named the path yet, oldest first."""
        self.address = ""
        """Where to post, without `/subagent-events`; empty until it is open."""

    async def open(self) -> None:
        """Begin to listen.

        Raises:
            OSError: the system gives no port.
        """
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=MAX_HEAD_BYTES)
        port = self._server.sockets[0].getsockname()[1]
        self.address = f"http://127.0.0.1:{port}{self._path}"

    def close(self) -> None:
        """Listen no more; what is being said is cut off."""
        if self._server is not None:
            self._server.close()
        for writer in self._talking:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._talking.add(writer)
        self._strangers[writer] = None
        self._make_room(writer)
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                await self._answer(reader, writer)
        except (OSError, TimeoutError, EOFError):
            pass  # whoever called has left, or says nothing: there is nobody to tell
        finally:
            self._forget(writer)
            writer.close()

    def _make_room(self, newcomer: asyncio.StreamWriter) -> None:
        oldest = next(iter(self._strangers))
        if len(self._talking) > MAX_CONNECTIONS and oldest is not newcomer:
            oldest.transport.abort()
            self._forget(oldest)

    def _forget(self, writer: asyncio.StreamWriter) -> None:
        self._talking.discard(writer)
        self._strangers.pop(writer, None)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        status, why = HTTPStatus.OK, "recorded"
        try:
            if len(self._talking) > MAX_CONNECTIONS:
                raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections at once: try again")
            self._write(await self._event(reader, writer))
        except Refused as refused:
            status, why = refused.status, refused.why
        writer.write(_response(status, why))
        await writer.drain()
        if status is not HTTPStatus.OK:
            writer.write_eof()
            await _drained(reader)

    async def _event(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> dict[str, Any]:
        """Return the facts of the event that is posted.

        Raises:
            Refused: it is no event, or not posted here.
            OSError, EOFError: the connection ended.
        """
        method, path, headers = await _head(reader)
        wanted = f"{self._path}/subagent-events"
        if not hmac.compare_digest(path.partition("?")[0].encode(), wanted.encode()):
            raise Refused(HTTPStatus.NOT_FOUND, f"POST to the address in {VARIABLES[0]} + /subagent-events")
        self._strangers.pop(writer, None)
        _check_source(headers)
        if method != "POST":
            raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, "only POST is taken here")
        if headers.get("expect", "").lower() == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await _body(reader, headers)
        try:
            return ForeignEvent.model_validate_json(body).facts()
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"])) or "the body"
            raise Refused(HTTPStatus.BAD_REQUEST, f"{where}: {first['msg']}"[:300]) from error


async def _head(reader: asyncio.StreamReader) -> tuple[str, str, dict[str, str]]:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.LimitOverrunError as error:
        raise Refused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the head is too long") from error
    first, *lines = head.rstrip("\r\n").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise Refused(HTTPStatus.BAD_REQUEST, "this is no HTTP/1.1 request")
    fields = [(name.strip().lower(), value.strip()) for name, _, value in (x.partition(":") for x in lines)]
    for once in _ONCE:
        if sum(name == once for name, _ in fields) > 1:
            raise Refused(HTTPStatus.BAD_REQUEST, f"there is more than one {once} line")
    return words[0], words[1], dict(fields)


def _check_source(headers: dict[str, str]) -> None:
    """Refuse what a web page sends, also under a name of its own for this machine (SPEC section 13)."""
    host = headers.get("host", _LOOPBACK[0]).partition(":")[0]
    if "origin" in headers or host not in _LOOPBACK:
        raise Refused(
            HTTPStatus.FORBIDDEN, "only programs of this machine may post here, by its loopback name"
        )


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return await _chunks(reader)
    length = headers.get("content-length", "")
    if not (length.isascii() and length.isdecimal()):
        raise Refused(HTTPStatus.BAD_REQUEST, "there is no body of a known length")
    return await reader.readexactly(_within(int(length[:12])))


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while True:
        line = (await _line(reader)).partition(b";")[0].strip()
        try:
            size = int(line[:12], 16)
        except ValueError as error:
            raise Refused(HTTPStatus.BAD_REQUEST, "the body is not chunked as it says") from error
        if size <= 0:
            return body
        _within(len(body) + size)
        body += (await reader.readexactly(size + 2))[:-2]


async def _line(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n")
    except asyncio.LimitOverrunError as error:
        raise Refused(HTTPStatus.BAD_REQUEST, "the body is not chunked as it says") from error


def _within(size: int) -> int:
    if size > MAX_BODY_BYTES:
        why = f"an event has at most {MAX_BODY_BYTES:,} bytes"
        raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, why)
    return size


async def _drained(reader: asyncio.StreamReader) -> None:
    """Read a little of what is still sent: to close before that would take the answer from who sends it."""
    with suppress(TimeoutError, OSError):
        async with asyncio.timeout(0.5):
            left = 4 * MAX_BODY_BYTES
            while left > 0 and (more := await reader.read(65536)):
                left -= len(more)


def _response(status: HTTPStatus, why: str) -> bytes:
    body = json.dumps({"status" if status is HTTPStatus.OK else "error": why}).encode()
    allow = "Allow: POST\r\n" if status is HTTPStatus.METHOD_NOT_ALLOWED else ""
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\n{allow}Content-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
