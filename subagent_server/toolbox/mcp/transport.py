"""The transports to MCP servers: by stdio, a program that speaks a message a line, and over HTTP.

The SDK's own transport for stdio is not used, because it starts a program with variables of this process
besides those passed to it, passes no descriptors (a box needs some), writes its stderr to a file with the
secrets in it, takes a message of any length, and does not notice the end of a program whose children keep
the pipe.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx2
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import INTERNAL_ERROR, ErrorData, JSONRPCError, jsonrpc_message_adapter

from subagent_server.run.agent_definition import ServerDefinition
from subagent_server.sandbox.readable import BoxRefused
from subagent_server.sandbox.server_locations import ServerStart
from subagent_server.toolbox.agent_process import AgentProcess, ProcessOrder, how_it_ended
from subagent_server.toolbox.http_body import UNPACKED, BoundedBody
from subagent_server.toolbox.mcp.server_log import ServerLog

LONGEST_MESSAGE = 64 << 20
"""Bytes of one message; the connection to a server that sends more is closed."""
GRACE_SECONDS = 1.0
_LAST_WORDS_SECONDS = 0.5

Incoming = SessionMessage | Exception
Streams = tuple[MemoryObjectReceiveStream[Incoming], MemoryObjectSendStream[SessionMessage]]


class StdioTransport:
    """An asynchronous context in which the program runs. `trouble` is how it ended, once it has.

    `starting` is called in a thread, and may build a box. `grace` is the time in seconds to exit after the
    end of its input, and again after TERM.
    """

    def __init__(self, starting: Callable[[], ServerStart], log: ServerLog) -> None:
        self.trouble: str | None = None
        self.over = asyncio.Event()
        self.grace = GRACE_SECONDS
        self._starting = starting
        self._start: ServerStart | None = None
        self._log = log

    async def __aenter__(self) -> Streams:
        """Start the program.

        Raises:
            OSError, ValueError: it cannot be started.
            BoxRefused, PathRefused, NotOutside: it cannot work where it has to.
        """
        try:
            self._process = await self._started()
        except BoxRefused as refusal:
            if not refusal.passes:
                raise
            self._process = await self._started()
        self._inward, received = anyio.create_memory_object_stream[Incoming](0)
        sent, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
        self._streams = (received, sent, outgoing, self._inward)
        self._reading = asyncio.create_task(self._read())
        self._tasks = [self._reading, asyncio.create_task(self._send(outgoing))]
        self._tasks.append(asyncio.create_task(self._watch()))
        return received, sent

    async def _started(self) -> AgentProcess:
        start = self._start = await asyncio.to_thread(self._starting)
        box = start.box and replace(start.box, group="")  # that is for the run's own programs
        order = ProcessOrder(
            start.argv, start.environment, start.cwd, box, bounded=start.bounded, longest_line=LONGEST_MESSAGE
        )
        return await AgentProcess.start(order, self._log.write)

    def remedy(self, words: str) -> str:
        """Return what to do if it failed with these words, as a part of a sentence; empty if unknown."""
        return "" if self._start is None else self._start.remedy(words)

    async def __aexit__(self, *_: object) -> None:
        """End the program: its input ends, then TERM, then KILL to all that it has started."""
        for stream in self._streams:
            stream.close()
        try:
            await self._process.end(self.grace, self.grace)
            self.trouble = self.trouble or how_it_ended(await self._process.exited())
        finally:
            for task in self._tasks:
                task.cancel()
            await self._process.aclose()
            self._log.flush()

    # -- three tasks

    async def _read(self) -> None:
        """Hand on the messages of the program until its output ends."""
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            async with self._inward:
                while line := await self._line():
                    message = self._message(line)
                    if message is not None:
                        await self._inward.send(message)

    async def _line(self) -> bytes:
        try:
            return await self._process.output.readline()
        except ValueError:
            self.trouble = f"sent a message of more than {LONGEST_MESSAGE >> 20} MiB"
            return b""

    def _message(self, line: bytes) -> SessionMessage | None:
        if not line.strip():
            return None
        try:
            try:
                message = jsonrpc_message_adapter.validate_json(line, by_name=False)
            except ValueError:  # programs cut texts in the middle of a character, in UTF-16 or UTF-8
                found = json.loads(line.decode("utf-8", "replace"))
                whole = json.dumps(found, ensure_ascii=False).encode("utf-8", "replace")
                message = jsonrpc_message_adapter.validate_json(whole, by_name=False)
            return SessionMessage(message)
        except (ValueError, RecursionError):
            self._log.say(f"(on stdout) {line[:500].decode('utf-8', 'replace').rstrip()}")
            return _refused(line)

    async def _send(self, outgoing: MemoryObjectReceiveStream[SessionMessage]) -> None:
        """Write messages to the program. If it has closed its input, fail the calls that wait."""
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            async for message in outgoing:
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                if not await self._process.write(text.encode() + b"\n"):
                    break
        self._inward.close()

    async def _watch(self) -> None:
        """After the end of the program, read its last output, note how it ended, and close the streams."""
        code = await self._process.exited()
        await asyncio.wait([self._reading], timeout=_LAST_WORDS_SECONDS)
        self.trouble = self.trouble or how_it_ended(code)
        self.over.set()
        self._inward.close()


def _refused(line: bytes) -> SessionMessage | None:
    """Return an error for an answer that is no message, which would be waited for in vain."""
    with suppress(ValueError, RecursionError):
        # The interpreter reads no number of more than 4,300 digits; one may be why this is no message.
        found = json.loads(line.decode("utf-8", "replace"), parse_int=lambda digits: int(digits[:20]))
        if isinstance(found, dict) and {"result", "error"} & found.keys() and "method" not in found:
            error = ErrorData(code=INTERNAL_ERROR, message="its answer is no message of the protocol")
            return SessionMessage(JSONRPCError(jsonrpc="2.0", id=found.get("id"), error=error))
    return None


# -- The transports over HTTP: streamable HTTP, and its predecessor SSE.


LONGEST_EVENT = 64 << 20
"""Bytes of one event of a streamable HTTP server, and of an answer that is no stream of events."""
_CONNECT_SECONDS = 30.0


@dataclass
class NetworkTransport:
    """An asynchronous context with the streams of a server. `trouble` is its last refusal of a message."""

    definition: ServerDefinition
    trouble: str | None = None
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """Never set: only the next call finds out whether such a server is there."""
    grace: float = 0.0
    _context: Any = field(default=None, init=False)

    async def __aenter__(self) -> Any:
        """Open it. Nothing is asked of a streamable HTTP server yet."""
        self._context = self._open()
        return await self._context.__aenter__()

    async def __aexit__(self, *error: Any) -> Any:
        """Close it; a session is ended on the server, too."""
        return await self._context.__aexit__(*error)

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[Any]:
        url = self.definition.url or ""
        if self.definition.type == "sse":
            async with sse_client(url, httpx_client_factory=self._client) as streams:
                yield streams
            return
        async with (
            self._client() as client,
            streamable_http_client(url, http_client=client, max_sse_event_size=LONGEST_EVENT) as streams,
        ):
            yield streams

    def _client(self, headers: Any = None, timeout: Any = None, auth: Any = None) -> httpx2.AsyncClient:
        """Return a client with the headers of the definition; reading ends with the call, not before.

        The arguments are those of the SDK for a factory of clients.
        """
        return httpx2.AsyncClient(
            headers=UNPACKED | _sendable(self.definition.headers),
            timeout=httpx2.Timeout(min(_CONNECT_SECONDS, self.definition.timeout), read=None),
            event_hooks={"response": [self._notice]},
        )

    async def _notice(self, response: httpx2.Response) -> None:
        failed = response.status_code >= 400
        if failed or not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
            response.stream = BoundedBody(response, LONGEST_EVENT, self._too_long)
        # A streamable HTTP server refuses the SDK's request to listen at any time, also amid a call.
        if not failed or (self.definition.type != "sse" and response.request.method != "POST"):
            return
        try:
            await response.aread()
        except httpx2.StreamError:  # it is too long, which is noted
            return
        body = " ".join(response.text[:300].split())
        self.trouble = f"answered HTTP {response.status_code} {response.reason_phrase}".rstrip()
        self.trouble += f" ({body})" if body else ""

    def _too_long(self) -> httpx2.StreamError:
        self.trouble = _TOO_LONG
        return httpx2.StreamError(_TOO_LONG)


_TOO_LONG = f"sent an answer of more than {LONGEST_EVENT >> 20} MiB"


def _sendable(headers: Mapping[str, str]) -> dict[str, str]:
    """Return headers as HTTP takes them, without the white space around a value.

    Raises:
        ValueError: one cannot be sent; its value, which may be a secret, is not shown.
    """
    sendable = {name: value.strip() for name, value in headers.items()}
    for name, value in sendable.items():
        if not (value.isascii() and value.isprintable()):
            raise ValueError(f"the value of its header {name} holds a line break, or what is not ASCII")
    return sendable


def shown_url(url: str) -> str:
    """Return a URL without the parts that may be secret: user, query and fragment."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
