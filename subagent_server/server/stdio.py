"""The MCP server over stdio: one client on two descriptors, and a quick exit that touches no run.

The SDK's own transport loses the id of a line that is no message: such a request would wait for ever.
"""

import asyncio
import fcntl
import json
import os
import select
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from typing import NoReturn

import anyio
import mcp_types as types
from anyio.abc import ObjectReceiveStream, ObjectSendStream
from mcp.shared.dispatcher import coerce_request_id
from mcp.shared.jsonrpc_dispatcher import cancelled_request_id_from_params
from mcp.shared.message import SessionMessage

from subagent_server.run.commands import readable
from subagent_server.run.files import write_all
from subagent_server.server.batches import BATCH_VERSION, batch_fault, batch_of
from subagent_server.server.connection import (
    LEFT,
    ClientConnection,
    SharedByClients,
    build_server,
    prepare_loop,
)
from subagent_server.server.messages import BadMessage, has_no_answer_yet, read_message
from subagent_server.settings import Role
from subagent_server.verbs.access import Caller
from subagent_server.verbs.service import Service

MAX_LINE_BYTES = 128 << 20
"""Twice the largest payload, which grows when JSON escapes it."""
CHUNK_BYTES = 1 << 16
MAX_REFUSING = 1_000
"""How many errors for lines that are not messages may wait for their reader."""
MAX_REPORTS = 100
"""How many lines that nobody gets an answer to are reported on stderr."""
HELD_SECONDS = 1.0
"""How long a client that has ended its input may leave all answers unread."""
LEAVE_SECONDS = 0.15
"""How long calls that are being worked on may still be answered when the server leaves."""
REFUSE_SECONDS = 0.05
"""How long the client may take to read that all others are not answered."""
_POLL_SECONDS = 0.01
_STDIN, _STDOUT, _STDERR, _FIRST_FREE = 0, 1, 2, 3


async def serve_stdio(service: Service, role: Role, caller: Caller) -> NoReturn:
    """Serve one client on stdin and stdout, then exit at once with code 0.

    It leaves at end of input, SIGINT or SIGTERM, within 300 ms. Nothing of a run lives here, so nothing needs
    to be put away: a thread that still waits for a line of input would only hold the leave up.
    """
    prepare_loop(service)
    connection = ClientConnection(service, role, caller, SharedByClients(service, caller))
    connection.read_ahead()
    try:
        stdin, stdout = claim()
    except OSError as error:
        _leave(error)
    serving = Serving(connection, stdin, stdout)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, serving.leave)
    _leave(await serving.until_left())


def _leave(failure: BaseException | None) -> NoReturn:
    if failure is not None:
        print(f"The server ends: {failure}", file=sys.stderr, flush=True)
    os._exit(0 if failure is None else 6)


def claim() -> tuple[int, int]:
    """Return descriptors of stdin and stdout, and keep all other code of the process away from them.

    From here on programs that are started read nothing, and prints go to stderr.

    Raises:
        OSError: there are too many open files.
    """
    incoming, outgoing = (fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE) for each in (_STDIN, _STDOUT))
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(nothing, _STDIN)
    os.dup2(nothing, _STDOUT)
    os.close(nothing)
    with suppress(OSError):
        os.dup2(_STDERR, _STDOUT)
    return incoming, outgoing


class Serving:
    """One client being served: `incoming` is read and `outgoing` is written, and neither is closed."""

    def __init__(self, connection: ClientConnection, incoming: int, outgoing: int) -> None:
        """Begin. Needs a running loop."""
        self._connection = connection
        self._leaving = asyncio.Event()
        self._outgoing = _Outgoing(outgoing, gone=self.leave)
        connection.count_unanswered = lambda: (
            len(self._outgoing.unanswered) + self._outgoing.one_at_a_time.locked()
        )
        self._incoming = _Incoming(
            incoming, self._outgoing, is_full=lambda: connection.is_full, at_end=self._end
        )
        server = build_server(lambda _: connection, connection)
        self._task = asyncio.create_task(
            server.run(self._incoming, self._outgoing, server.create_initialization_options())
        )

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
        with anyio.move_on_after(LEAVE_SECONDS):  # calls that wait for runs are not waited for
            while self._connection.busy:
                await anyio.sleep(_POLL_SECONDS)
        refusing = asyncio.create_task(self._refuse_the_rest())
        self._incoming.answering.add(refusing)
        await asyncio.wait([refusing], timeout=REFUSE_SECONDS)
        return None

    async def aclose(self) -> None:
        """End what is under way. The client's end must be closed before: a thread may wait for its reader."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)  # until it has ended, it refuses more lines
        late = [*self._incoming.answering]  # a late answer might get into a file of this number
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        self._connection.close()

    async def _end(self) -> None:
        self.leave()
        await anyio.sleep_forever()  # a stream that ends would cut the calls off that are being worked on

    async def _refuse_the_rest(self) -> None:
        """Answer each request that has no answer with an error. A client that does not read gets none."""
        error = types.ErrorData(code=types.CONNECTION_CLOSED, message=LEFT)
        with suppress(anyio.BrokenResourceError):
            while self._outgoing.unanswered:
                number = next(iter(self._outgoing.unanswered.values()))
                await self._outgoing.send(
                    SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=number, error=error))
                )


class _Incoming(ObjectReceiveStream[SessionMessage]):
    """The messages of a client. `at_end` is awaited after the last, before the stream ends.

    A line that is no message is answered here; nobody waits until the client has read that. As long as
    `is_full()`, nothing is taken: a client that reads no answers gets no more of them.
    """

    def __init__(
        self,
        descriptor: int,
        outgoing: "_Outgoing",
        is_full: Callable[[], bool],
        at_end: Callable[[], Awaitable[None]],
    ) -> None:
        self._descriptor = descriptor
        self._outgoing = outgoing
        self._dropped = 0
        self._is_full = is_full
        self._at_end = at_end
        self.answering: set[asyncio.Task[None]] = set()
        """The tasks that answer lines which are no messages, and at the end what has no answer."""
        self._takes_batches = False
        self._more_is_read = False
        """Whether a whole line lies behind the last one that was yielded."""
        self._messages = self._read_messages()  # one for all loops: the SDK looks only at the first message

    async def receive(self) -> SessionMessage:
        """Return the next message. Raises anyio.EndOfStream: there will be none."""
        try:
            return await anext(self._messages)
        except StopAsyncIteration:
            raise anyio.EndOfStream from None

    async def aclose(self) -> None:
        """Read no more. The descriptor is left open: other processes may share it."""
        await self._messages.aclose()

    async def _read_messages(self) -> AsyncGenerator[SessionMessage]:
        """Yield the messages, without a first discovery that a handshake follows.

        A client may cancel its discovery while the server starts (the AI SDK after 1 s). Both lie in the
        pipe then, and the SDK would serve the era of the first alone.
        """
        is_first, discovery = True, None
        async with aclosing(self._every_message()) as messages:
            async for message in messages:
                if is_first and self._more_is_read and _method(message) == "server/discover":
                    is_first, discovery = False, message
                    continue
                if discovery is not None and _method(message) != "initialize":
                    yield SessionMessage(discovery)
                elif isinstance(discovery, types.JSONRPCRequest):
                    self._outgoing.is_answered(discovery.id)
                is_first, discovery = False, None
                if message is not None:
                    yield SessionMessage(message)
        await self._at_end()

    async def _every_message(self) -> AsyncGenerator[types.JSONRPCMessage | None]:
        """Yield the message of each line, None for a line that is not a message."""
        async with aclosing(self._lines()) as lines:
            async for line, size in lines:
                if not await self._has_room():
                    break
                batch = batch_of(line) if self._takes_batches and size <= MAX_LINE_BYTES else None
                if batch is not None and batch_fault(batch) is None:
                    for each in batch:  # each is answered alone, as the protocol allows
                        yield self._taken(json.dumps(each).encode(), size)
                else:
                    yield self._taken(line, size)

    def _taken(self, line: bytes, size: int) -> types.JSONRPCMessage | None:
        """Return the message of a line; None if it is empty, or not a message, which is answered here."""
        message = _too_long(size) if size > MAX_LINE_BYTES else read_message(line)
        if isinstance(message, types.JSONRPCRequest) and self._outgoing.is_open(message.id):
            message = has_no_answer_yet(message.id)
        if isinstance(message, BadMessage):
            self._refuse(message, size)
            return None
        if message is not None:
            self._note(message)
        return message

    async def _lines(self) -> AsyncGenerator[tuple[bytes, int]]:
        """Yield each line with its size; of one that is too long the size alone is kept."""
        parts: list[bytes] = []
        size = 0
        while data := await self._read():
            *whole, rest = data.split(b"\n")
            for number, part in enumerate(whole, 1):
                self._more_is_read = number < len(whole)
                yield b"".join([*parts, part]), size + len(part)
                parts, size = [], 0
            parts.append(rest)
            size += len(rest)
            if size > MAX_LINE_BYTES:
                parts.clear()
        if size:
            yield b"".join(parts), size

    async def _read(self) -> bytes:
        with suppress(PermissionError):  # a file: it is always readable, and cannot be waited for
            await readable(self._descriptor)
        try:
            return os.read(self._descriptor, CHUNK_BYTES)
        except ConnectionError:  # a client at a socket has gone, and has left an answer unread
            return b""

    async def _has_room(self) -> bool:
        """Wait until one more message may be taken. False: the client has gone and reads no answers."""
        held = 0.0
        poll = select.poll()
        poll.register(self._descriptor, select.POLLRDHUP)
        while self._is_full() or len(self.answering) >= MAX_REFUSING:
            if held >= HELD_SECONDS:
                return False
            await asyncio.sleep(_POLL_SECONDS)
            held = held + _POLL_SECONDS if poll.poll(0) else 0.0
        return True

    def _note(self, message: types.JSONRPCMessage) -> None:
        """Note a request that needs an answer, and that one which the client cancels needs none."""
        if isinstance(message, types.JSONRPCRequest):
            self._outgoing.unanswered[coerce_request_id(message.id)] = message.id
            if message.method == "initialize":
                self._takes_batches = (message.params or {}).get("protocolVersion") == BATCH_VERSION
        elif isinstance(message, types.JSONRPCNotification) and message.method == "notifications/cancelled":
            cancelled = cancelled_request_id_from_params(message.params)
            if cancelled is not None:
                self._outgoing.is_answered(cancelled)

    def _refuse(self, bad: "BadMessage", size: int) -> None:
        """Answer a line that is not a message; what no request learns is reported on stderr."""
        if not bad.gets_answer or bad.request_id is None:
            self._report(size, bad.why)
        if not bad.gets_answer:
            return
        error = types.ErrorData(code=bad.code, message=f"{bad.why}.")
        refusal = SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=bad.request_id, error=error))

        async def send() -> None:
            with suppress(anyio.BrokenResourceError):  # it is gone
                await self._outgoing.send(refusal)

        task = asyncio.create_task(send())
        self.answering.add(task)
        task.add_done_callback(self.answering.discard)

    def _report(self, size: int, why: str) -> None:
        """Log on stderr why a line was dropped. The line itself may hold a secret, and is not shown."""
        self._dropped += 1
        if self._dropped <= MAX_REPORTS:
            last = "; no more of them are reported" if self._dropped == MAX_REPORTS else ""
            words = f"A line of the client ({size:,} bytes) was dropped: {why.rstrip('.')}{last}."
            print(words, file=sys.stderr, flush=True)


class _Outgoing(ObjectSendStream[SessionMessage]):
    """The messages to a client, one at a time. `gone` is called if the client has closed its end."""

    def __init__(self, descriptor: int, gone: Callable[[], None]) -> None:
        self.unanswered: dict[types.RequestId, types.RequestId] = {}
        """The ids of the requests that were read and have no answer; one is out of it before its answer is
        written. The SDK takes 1 and "1" for one id, also in a cancellation: so do the keys."""
        self.one_at_a_time = asyncio.Lock()
        self._descriptor = descriptor
        self._gone = gone

    async def send(self, item: SessionMessage) -> None:
        """Write a message, whole. Raises anyio.BrokenResourceError: nobody reads it."""
        message = item.message
        try:
            data = message.model_dump_json(by_alias=True, exclude_unset=True).encode()
        except ValueError:  # bytes of a path that are not text become `?`
            fields = message.model_dump(by_alias=True, exclude_unset=True)
            data = json.dumps(fields, ensure_ascii=False).encode("utf-8", "replace")
        async with self.one_at_a_time:
            if isinstance(message, types.JSONRPCResponse | types.JSONRPCError) and message.id is not None:
                self.is_answered(message.id)
            try:
                with anyio.CancelScope(shield=True):  # half a line would spoil the next one
                    await anyio.to_thread.run_sync(write_all, self._descriptor, data + b"\n")
            except ConnectionError as error:
                self._gone()
                raise anyio.BrokenResourceError from error

    def is_open(self, number: types.RequestId) -> bool:
        """Whether a request of this id was read and has no answer yet."""
        return coerce_request_id(number) in self.unanswered

    def is_answered(self, number: types.RequestId) -> None:
        """Note that a request needs no answer any more."""
        self.unanswered.pop(coerce_request_id(number), None)

    async def aclose(self) -> None:
        """Leave the descriptor open: other processes may share it."""


def _method(message: types.JSONRPCMessage | None) -> str | None:
    return getattr(message, "method", None)


def _too_long(size: int) -> BadMessage:
    return BadMessage(
        f"the line has {size:,} of at most {MAX_LINE_BYTES:,} bytes: leave the material in a file, and "
        "name that"
    )
