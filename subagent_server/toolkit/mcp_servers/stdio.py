"""The stdio transport: a program whose stdin and stdout speak the protocol, a message a line.

The SDK's own transport is not used, because it starts a program with variables of this process beside those
it is given, passes no descriptors (a box needs some), writes its stderr to a file with the secrets in it,
takes a message of any length, and does not notice the end of a program whose children keep the pipe.
"""

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from types import TracebackType

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from subagent_server.sandbox.refusal import BoxRefused
from subagent_server.sandbox.server_places import ServerStart
from subagent_server.toolkit.agent_process import AgentProcess, ProcessOrder
from subagent_server.toolkit.mcp_servers.server_log import ServerLog

LONGEST_MESSAGE = 64 << 20
"""Bytes of one message; the connection to a server that sends more is closed."""
GRACE_SECONDS = 1.0
_LAST_WORDS_SECONDS = 0.5

Incoming = SessionMessage | Exception
Streams = tuple[MemoryObjectReceiveStream[Incoming], MemoryObjectSendStream[SessionMessage]]


class StdioTransport:
    """An asynchronous context in which the program runs. `trouble` says how it ended, once it has.

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
            BoxRefused, PlaceRefused, NotOutside: it cannot work where it has to.
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
        box = start.box and replace(start.box, group="")  # the limits are those of the run's own programs
        order = ProcessOrder(
            start.argv, start.environment, start.cwd, box, bounded=False, longest_line=LONGEST_MESSAGE
        )
        return await AgentProcess.start(order, self._log.write)

    def remedy(self, words: str) -> str:
        """Return what to do if it failed with these words, as a part of a sentence; empty if unknown."""
        return "" if self._start is None else self._start.remedy(words)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the program: its input ends, then TERM, then KILL to all that it has started."""
        for stream in self._streams:
            stream.close()
        try:
            await self._process.end(self.grace, self.grace)
            self.trouble = self.trouble or _how(await self._process.exited())
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
            return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
        except ValueError:
            self._log.say(f"(on stdout) {line[:500].decode('utf-8', 'replace').rstrip()}")
            return None

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
        self.trouble = self.trouble or _how(code)
        self.over.set()
        self._inward.close()


def _how(code: int | None) -> str:
    if code is None or code >= 0:
        return "ended" if code is None else f"ended with exit code {code}"
    with suppress(ValueError):
        return f"was ended by {signal.Signals(-code).name}"
    return f"was ended by signal {-code}"
