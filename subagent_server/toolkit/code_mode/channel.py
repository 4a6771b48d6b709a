"""The host's end of a program's socket: its calls come in, their answers go out.

Every incoming record is data. It has a bound and a fixed form; the first record of another form ends the
program.
"""

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

Reply = dict[str, Any]
Answerer = Callable[[str, dict[str, Any]], Awaitable[Reply]]
"""Answers a call of a function with `value`, `text` (and `value`), or `error`."""

MOST_CALLS = 1_000
"""How many calls one program may make."""
MOST_CALLS_AT_ONCE = 64
"""How many of them are under way at the same time; the program waits with the others."""
MOST_REQUEST_BYTES = 4 << 20
"""How much a call may send, as JSON."""
MOST_REPLY_BYTES = 16 << 20
"""How much a call may bring, as JSON."""
_MOST_ANSWERED = MOST_CALLS + 1
"""The check of literal arguments, before a program runs, is no call of it."""
_MOST_RECORDS = 2 * MOST_CALLS
_TOO_MANY = f"A program may make {MOST_CALLS:,} calls: end it, and go on in another one."
_TOO_LARGE = (
    f"The call was made, but its result has more than {MOST_REPLY_BYTES:,} bytes: ask for less at once."
)


class Broken(Exception):
    """The program has written something that is no record; the text says what."""


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    ready: bool | None = None
    call: int | None = None
    function: str | None = None
    arguments: dict[str, Any] | None = None
    end: int | None = None
    fault: str | None = None


class Channel:
    """The socket of one program. `end` and `fault` are what the program has reported of its end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: Answerer) -> None:
        self.end: int | None = None
        self.fault: str | None = None
        self.closed = asyncio.Event()
        """Set when nobody is left who could write a record."""
        self._reader = reader
        self._writer = writer
        self._answer = answer
        self._places = asyncio.Semaphore(MOST_CALLS_AT_ONCE)
        self._used: set[int] = set()

    @classmethod
    async def open(cls, line: socket.socket, answer: Answerer) -> "Channel":
        """Return the channel of a socket, which it takes over."""
        reader, writer = await asyncio.open_connection(sock=line, limit=MOST_REQUEST_BYTES + 4_096)
        return cls(reader, writer, answer)

    async def begins(self) -> bool:
        """Return whether the program has got ready; False if it has ended. Raises Broken."""
        record = await self._next()
        if record is not None and record.ready is not True:
            raise Broken("its first record is not that it is ready")
        return record is not None

    async def send(self, record: Mapping[str, Any]) -> None:
        """Send a record. A program that has ended gets none."""
        await self._write(json.dumps(record))

    async def _write(self, line: str) -> None:
        try:
            self._writer.write(line.encode() + b"\n")
            await self._writer.drain()
        except ConnectionError:
            return

    async def serve(self) -> None:
        """Answer the calls of the program, side by side, until no process is left that could make one.

        Raises:
            Broken: a record has not the form that it should have.
        """
        try:
            async with asyncio.TaskGroup() as calls:
                await self._read_calls(calls)
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from errors

    async def _read_calls(self, calls: asyncio.TaskGroup) -> None:
        for _ in range(_MOST_RECORDS):
            record = await self._next()
            if record is None:
                self.closed.set()
                return
            if record.fault is not None:
                self.fault = record.fault
            elif record.end is not None:
                self.end = record.end
            else:
                checked = self._checked(record)
                await self._places.acquire()
                calls.create_task(self._serve(*checked))
        raise Broken(f"it has written more than {_MOST_RECORDS:,} records")

    def _checked(self, record: _Record) -> tuple[int, str, dict[str, Any]]:
        if record.call is None or record.function is None or record.arguments is None:
            raise Broken("a record is neither a call nor an end")
        if record.call in self._used:
            raise Broken(f"two calls have the number {record.call}")
        self._used.add(record.call)
        return record.call, record.function, record.arguments

    async def _serve(self, number: int, function: str, arguments: dict[str, Any]) -> None:
        try:
            reply = {"error": _TOO_MANY}
            if len(self._used) <= _MOST_ANSWERED:
                reply = await self._answer(function, arguments)
            line = json.dumps({"call": number, **reply})
            if len(line) > MOST_REPLY_BYTES:
                line = json.dumps({"call": number, "error": _TOO_LARGE})
            await self._write(line)
        finally:
            self._places.release()

    async def _next(self) -> _Record | None:
        """Return the next record, None at the end."""
        try:
            line = await self._reader.readuntil(b"\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        except asyncio.LimitOverrunError as error:
            raise Broken(f"a record has more than {MOST_REQUEST_BYTES:,} bytes") from error
        try:
            return _Record.model_validate(json.loads(line))
        except (ValueError, RecursionError, ValidationError) as error:
            raise Broken("a record is not the JSON of a call") from error

    def close(self) -> None:
        """Close the socket."""
        self._writer.close()
