"""The stdio transport: a program whose stdin and stdout speak the protocol, a message a line.

Unlike the SDK's own transport, it reports how the program ended, bounds a message, and survives lines that
are not messages: many servers greet their user on stdout.
"""

import asyncio
import os
import signal
from asyncio.subprocess import PIPE, Process, SubprocessStreamProtocol
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from subagent_server.sandbox.box import Box
from subagent_server.sandbox.gated_start import closed_child
from subagent_server.sandbox.refusal import BoxRefused
from subagent_server.sandbox.server_places import ServerStart
from subagent_server.sandbox.trial import refusal_of
from subagent_server.toolkit.mcp_servers.server_log import ServerLog

LONGEST_MESSAGE = 64 << 20
"""Bytes of one message; the connection to a server that sends more is closed."""
GRACE_SECONDS = 1.0
_LAST_WORDS_SECONDS = 0.5
_MOST_WORDS = 4096

Incoming = SessionMessage | Exception
Streams = tuple[MemoryObjectReceiveStream[Incoming], MemoryObjectSendStream[SessionMessage]]


class _WatchedProcess(SubprocessStreamProtocol):
    """Sets an event when the process has ended, even if its children hold the pipes open."""

    def __init__(self) -> None:
        super().__init__(limit=LONGEST_MESSAGE, loop=asyncio.get_running_loop())
        self.gone = asyncio.Event()

    def process_exited(self) -> None:
        """Called by the loop."""
        super().process_exited()
        self.gone.set()


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
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Streams:
        """Start the program.

        Raises:
            OSError, ValueError: it cannot be started.
            BoxRefused, PlaceRefused, NotOutside: it cannot work where it has to.
        """
        try:
            transport, protocol = await self._started()
        except BoxRefused as refusal:
            if not refusal.passes:
                raise
            transport, protocol = await self._started()
        self._process = Process(transport, protocol, asyncio.get_running_loop())
        self._transport, self._gone = transport, protocol.gone
        self._inward, received = anyio.create_memory_object_stream[Incoming](0)
        sent, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
        self._streams = (received, sent, outgoing, self._inward)
        self._words = asyncio.create_task(self._listen())
        self._reading = asyncio.create_task(self._read())
        self._tasks = [self._words, self._reading]
        self._tasks += [asyncio.create_task(self._send(outgoing)), asyncio.create_task(self._watch())]
        return received, sent

    async def _started(self) -> tuple[asyncio.SubprocessTransport, _WatchedProcess]:
        start = self._start = await asyncio.to_thread(self._starting)
        if start.box is not None:
            return await _started_in_box(start.box, start.argv)
        return await _started(start.argv, env=dict(start.environment), cwd=start.cwd)

    def remedy(self, words: str) -> str:
        """Return what to do if it failed with these words, as a part of a sentence; empty if unknown."""
        return "" if self._start is None else self._start.remedy(words)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the program: its input ends, then TERM, then KILL to all of its session."""
        for stream in self._streams:
            stream.close()
        try:
            await self._leave()
        finally:
            self._signal(signal.SIGKILL)  # its children in the session, too
            await self._end_tasks()
            self._transport.close()
            self._log.flush()

    async def _leave(self) -> None:
        stdin = self._process.stdin
        if stdin is not None:
            stdin.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._gone.wait(), self.grace)
                self.trouble = self.trouble or _how(self._process.returncode)
                return
            self._signal(number)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._gone.wait(), self.grace)

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    async def _end_tasks(self) -> None:
        for task in self._tasks:
            if task is not self._words:
                task.cancel()
        await asyncio.wait([self._words], timeout=_LAST_WORDS_SECONDS)
        self._words.cancel()
        await asyncio.wait(self._tasks, timeout=GRACE_SECONDS)

    # -- four tasks

    async def _listen(self) -> None:
        """Log the stderr of the program."""
        stream = self._process.stderr
        while stream is not None and (chunk := await stream.read(1 << 16)):
            self._log.write(chunk)

    async def _read(self) -> None:
        """Hand on the messages of the program until its output ends."""
        stream = self._process.stdout
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            async with self._inward:
                while stream is not None and (line := await self._line(stream)):
                    message = self._message(line)
                    if message is not None:
                        await self._inward.send(message)

    async def _line(self, stream: asyncio.StreamReader) -> bytes:
        try:
            return await stream.readline()
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
        stdin = self._process.stdin
        try:
            with suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                async for message in outgoing:
                    text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                    if stdin is not None:
                        stdin.write(text.encode() + b"\n")
                        await stdin.drain()
        finally:
            self._inward.close()

    async def _watch(self) -> None:
        """After the end of the program, read its last output, note how it ended, and close the streams."""
        await self._gone.wait()
        await asyncio.wait([self._reading, self._words], timeout=_LAST_WORDS_SECONDS)
        if self.trouble is None:
            self.trouble = _how(self._process.returncode)
        self.over.set()
        self._inward.close()


async def _started(argv: Sequence[str], **how: Any) -> tuple[asyncio.SubprocessTransport, _WatchedProcess]:
    return await asyncio.get_running_loop().subprocess_exec(
        _WatchedProcess, *argv, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True, **how
    )


async def _started_in_box(
    box: Box, argv: Sequence[str]
) -> tuple[asyncio.SubprocessTransport, _WatchedProcess]:
    """Start a program that begins when its box is found closed. Raises BoxRefused, OSError."""
    gate, opener = os.pipe()
    try:
        with box.command(argv, ["--block-fd", str(gate)]) as (command, descriptors):
            started = await _started(command, env={}, cwd="/", pass_fds=(*descriptors, gate))
        try:
            await asyncio.to_thread(closed_child, started[0].get_pid(), box)
            os.write(opener, b"!")
        except BoxRefused as refusal:
            raise await _refusal_of(started, refusal) from refusal
        except BaseException:
            started[0].close()
            raise
        return started
    finally:
        os.close(gate)
        os.close(opener)


async def _refusal_of(
    started: tuple[asyncio.SubprocessTransport, _WatchedProcess], refusal: BoxRefused
) -> BoxRefused:
    """Return the refusal in the words of a bubblewrap that has ended, else the one given; end it."""
    transport, protocol = started
    stderr = Process(transport, protocol, asyncio.get_running_loop()).stderr
    with suppress(TimeoutError):
        await asyncio.wait_for(protocol.gone.wait(), _LAST_WORDS_SECONDS)
        words = await stderr.read(_MOST_WORDS) if stderr is not None else b""
        refusal = refusal_of(words.decode("utf-8", "replace"), transport.get_returncode())
    transport.close()
    return refusal


def _how(code: int | None) -> str:
    if code is None or code >= 0:
        return "ended" if code is None else f"ended with exit code {code}"
    with suppress(ValueError):
        return f"was ended by {signal.Signals(-code).name}"
    return f"was ended by signal {-code}"
