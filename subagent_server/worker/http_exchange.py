"""An HTTP/1.1 request and its response, parsed by h11: the part of the protocol needed by the event port."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus

import h11

MAX_HEAD_BYTES = 16 * 1024
_READ_BYTES = 16 * 1024
_LINGER_SECONDS = 0.5
_LINGER_BYTES = 1 << 20


class RequestRefused(Exception):
    """A request that is not taken: the status, and a sentence for its sender."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status
        self.why = why


@dataclass(frozen=True)
class RequestHead:
    """Method, target and headers of a request, the names of headers in lower case."""

    method: str
    target: bytes
    headers: dict[str, str]


class HttpExchange:
    """Reads a request from a connection and answers, then the next one if the connection goes on."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._protocol = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._method = ""
        self._headers: dict[str, str] = {}

    async def head(self) -> RequestHead:
        """Return the head of the request.

        Raises:
            RequestRefused: the request is not HTTP, or too long.
            EOFError: the connection ended before the end of the head.
        """
        event = await self._next_event()
        if not isinstance(event, h11.Request):
            raise EOFError
        self._method = event.method.decode("ascii")
        self._headers = {name.decode("ascii"): value.decode("latin-1") for name, value in event.headers}
        return RequestHead(self._method, event.target, self._headers)

    async def body(self, most: int) -> bytes:
        """Return the body, of `most` bytes or less.

        Raises:
            RequestRefused: it is longer, or not framed as the head says.
        """
        if int(self._headers.get("content-length", "0")) > most:  # h11 has checked that it is a number
            raise _too_long(most)
        if self._protocol.they_are_waiting_for_100_continue:
            self._send(h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue"))
        body = bytearray()
        while not isinstance(event := await self._next_event(), h11.EndOfMessage):
            if isinstance(event, h11.Data):
                body += event.data
            if len(body) > most:
                raise _too_long(most)
        return bytes(body)

    async def respond(self, status: HTTPStatus, content: bytes, allow: str | None = None) -> None:
        """Send the response, as JSON; a refusal announces the end of the connection.

        `allow` names the methods that are taken, if the refused one is not.
        """
        body = [] if self._method == "HEAD" else [h11.Data(data=content)]
        self._send(_response(status, len(content), allow), *body, h11.EndOfMessage())
        await self._writer.drain()
        if status is not HTTPStatus.OK or (not self._goes_on and self._protocol.trailing_data[0]):
            self._writer.write_eof()
            await self._linger()

    def begin_next(self) -> bool:
        """Get ready for the next request, behind a response; False if the connection has to end."""
        if self._goes_on:
            self._protocol.start_next_cycle()
            return True
        return False

    @property
    def _goes_on(self) -> bool:
        """Whether both sides keep the connection."""
        return self._protocol.our_state is h11.DONE and self._protocol.their_state is h11.DONE

    async def _next_event(self) -> h11.Event:
        """Return the next event of the request. It waits without a bound: the caller has a deadline."""
        try:
            while (event := self._protocol.next_event()) is h11.NEED_DATA:
                self._protocol.receive_data(await self._reader.read(_READ_BYTES))
        except h11.RemoteProtocolError as error:
            status = HTTPStatus(error.error_status_hint)
            raise RequestRefused(status, f"this is not a whole HTTP/1.1 request: {error}"[:300]) from error
        assert not isinstance(event, type)  # PAUSED comes only behind the end of a request
        return event

    def _send(self, *events: h11.Event) -> None:
        """Send the events in one piece: each write costs a call of the system."""
        self._writer.write(b"".join(self._protocol.send(event) or b"" for event in events))

    async def _linger(self) -> None:
        """Read a little of the rest: closing before would reset the connection, and lose the response."""
        with suppress(TimeoutError, OSError):
            async with asyncio.timeout(_LINGER_SECONDS):
                left = _LINGER_BYTES
                while left > 0 and (more := await self._reader.read(65536)):
                    left -= len(more)


@lru_cache(maxsize=64)  # nearly all responses are the same, and h11 checks each header
def _response(status: HTTPStatus, length: int, allow: str | None) -> h11.Response:
    fields = {"Content-Type": "application/json", "Content-Length": str(length)}
    if allow is not None:
        fields["Allow"] = allow
    if status is not HTTPStatus.OK:
        fields["Connection"] = "close"
    return h11.Response(status_code=status, headers=list(fields.items()), reason=status.phrase)


def _too_long(most: int) -> RequestRefused:
    return RequestRefused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"an event has at most {most:,} bytes")
