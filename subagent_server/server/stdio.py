"""stdin and stdout as the streams of the protocol, without a thread for each line.

Passing lines between threads is a fifth of a short call with the SDK's own transport. Here the event loop
reads what is there, and writes what the pipe has room for; only the rest of a long answer to a slow client is
written by a thread.
"""

import asyncio
import fcntl
import json
import os
import select
import stat
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager, suppress
from types import TracebackType
from typing import Any, Self

import anyio
import mcp_types as types
from mcp.shared.message import SessionMessage

from subagent_server.server.lines import LineCutter, LongLine
from subagent_server.server.refusals import bad_line, is_request_in_disguise

CHUNK_BYTES = 1 << 16
MAX_REFUSING = 1_000
"""How many errors for lines that are not messages may wait for their reader."""
MAX_REPORTS = 100
"""How many lines that nobody gets an answer to are reported on stderr."""
HELD_SECONDS = 1.0
"""How long a client that has ended its input may leave all answers unread."""
_POLL_SECONDS = 0.01
_STDIN, _STDOUT, _STDERR = 0, 1, 2
_FIRST_FREE = 3

Message = SessionMessage | Exception


def claim() -> tuple[int, int]:
    """Return descriptors of stdin and stdout, and keep all other code of the process away from them.

    From here on programs that are started read nothing, and prints go to stderr.

    Raises:
        OSError: one of the two is closed.
    """
    incoming, outgoing = (fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE) for each in (_STDIN, _STDOUT))
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(nothing, _STDIN)
    os.dup2(nothing, _STDOUT)
    os.close(nothing)
    with suppress(OSError):
        os.dup2(_STDERR, _STDOUT)
    return incoming, outgoing


class Reports:
    """Reports on stderr about lines that get no answer; their number is bounded."""

    def __init__(self) -> None:
        self._count = 0

    def of_line(self, line: bytes | LongLine, why: str) -> None:
        """Say why a line was dropped. The line itself may hold a secret, and is not shown."""
        self._count += 1
        if self._count <= MAX_REPORTS:
            last = "; no more of them are reported" if self._count == MAX_REPORTS else ""
            words = f"A line of the client ({len(line):,} bytes) was dropped: {why.rstrip('.')}{last}."
            print(words, file=sys.stderr, flush=True)


class _Stream:
    """A descriptor as a stream. The descriptor stays open, because other processes may share it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    async def aclose(self) -> None:
        """Nothing is held."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class Incoming(_Stream):
    """The messages of a client. `at_end` is awaited after the last, before the stream reports its end.

    `noted` gets each message before it is returned. `answer` sends the error for a line that is not a
    message; nobody waits until the client has read that. As long as `is_full()`, no message is taken: a
    client that reads no answers is not given more of them.
    """

    def __init__(
        self,
        descriptor: int,
        at_end: Callable[[], Awaitable[None]],
        answer: Callable[[SessionMessage], Coroutine[Any, Any, None]],
        noted: Callable[[types.JSONRPCMessage], None],
        is_full: Callable[[], bool],
        reports: Reports,
    ) -> None:
        super().__init__(descriptor)
        self._at_end = at_end
        self._is_full = is_full
        self._reports = reports
        self._noted = noted
        self._answer = answer
        self._answering: set[asyncio.Task[None]] = set()
        self._cutter = LineCutter()
        self._ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def receive(self) -> Message:
        """Return the next message, or what is wrong with the line.

        Raises:
            anyio.EndOfStream: there will be none.
        """
        lines = self._cutter.lines
        while not lines:
            if self._ended:
                await self._at_end()
                raise anyio.EndOfStream
            await self._until_readable()
            data = os.read(self._descriptor, CHUNK_BYTES)
            self._ended = not data
            self._cutter.take(data)
        if not await self._has_room():
            await self._at_end()
            raise anyio.EndOfStream
        line = lines.popleft()
        message = _parsed(line)
        if isinstance(message, Exception):
            self._refuse(line)
        else:
            self._noted(message.message)
        return message

    async def _has_room(self) -> bool:
        """Wait until one more message may be taken. False: the client has gone and reads no answers."""
        held = 0.0
        while self._is_full() or len(self._answering) >= MAX_REFUSING:
            if held >= HELD_SECONDS:
                return False
            await asyncio.sleep(_POLL_SECONDS)
            held = held + _POLL_SECONDS if self._has_hung_up() else 0.0
        return True

    def _has_hung_up(self) -> bool:
        """Whether the client has closed its end. What it wrote before may still lie in the pipe."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLRDHUP)
        return bool(poll.poll(0))

    def _refuse(self, line: bytes | LongLine) -> None:
        """Answer a line that is not a message; what no request learns is reported on stderr."""
        bad = bad_line(line)
        if bad is None:
            return
        if bad.is_nameless:
            self._reports.of_line(line, bad.why)
        if bad.answer is None:
            return
        refusal = SessionMessage(bad.answer)

        async def send() -> None:
            with suppress(anyio.BrokenResourceError):  # it is gone
                await self._answer(refusal)

        task = asyncio.create_task(send())
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _until_readable(self) -> None:
        loop = asyncio.get_running_loop()
        readable = loop.create_future()
        try:
            loop.add_reader(self._descriptor, _settle, readable)
        except PermissionError:  # a file: it is always readable, and cannot be waited for
            return
        try:
            await readable
        finally:
            loop.remove_reader(self._descriptor)


class Outgoing(_Stream):
    """The messages to a client. `gone` is called if the client has closed its end.

    `writing` is entered with each message before it is written, and left when all of it is.
    """

    def __init__(
        self,
        descriptor: int,
        gone: Callable[[], None],
        writing: Callable[[types.JSONRPCMessage], AbstractContextManager[None]],
    ) -> None:
        super().__init__(descriptor)
        self._gone = gone
        self._writing = writing
        self._one_at_a_time = asyncio.Lock()
        kind = os.fstat(descriptor).st_mode
        self._tells_room = stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)

    async def send(self, item: SessionMessage) -> None:
        """Write a message, whole.

        Raises:
            anyio.BrokenResourceError: nobody reads it.
        """
        data = _encoded(item.message) + b"\n"
        async with self._one_at_a_time:
            with self._writing(item.message):
                await self._send(data)

    async def _send(self, data: bytes) -> None:
        try:
            rest = self._written(memoryview(data))
            if rest:
                await anyio.to_thread.run_sync(self._write, rest)
        except BrokenPipeError as error:
            self._gone()
            raise anyio.BrokenResourceError from error

    def _written(self, data: memoryview) -> memoryview:
        """Write what there is room for and return the rest. Where poll(2) sees room, it is this much."""
        while data and self._tells_room and self._poll.poll(0):
            data = data[os.write(self._descriptor, data[: select.PIPE_BUF]) :]
        return data

    def _write(self, data: memoryview) -> None:
        while data:
            data = data[os.write(self._descriptor, data) :]


def _settle(readable: "asyncio.Future[None]") -> None:
    if not readable.done():
        readable.set_result(None)


def _parsed(line: bytes | LongLine) -> Message:
    if isinstance(line, LongLine):
        return ValueError("a line that is too long")
    text = line.decode("utf-8", "replace")
    try:
        message = types.jsonrpc_message_adapter.validate_json(text, by_name=False)
    except ValueError as error:
        return error
    if is_request_in_disguise(message, text):
        return ValueError("a request whose id cannot be one")
    return SessionMessage(message)


def _encoded(message: types.JSONRPCMessage) -> bytes:
    """Return a message as it is sent; bytes of a path that are not text become `?`."""
    try:
        return message.model_dump_json(by_alias=True, exclude_unset=True).encode()
    except ValueError:
        facts = message.model_dump(by_alias=True, exclude_unset=True)
        return json.dumps(facts, ensure_ascii=False).encode("utf-8", "replace")
