"""JSON-RPC with a program, a message a line: the calls of both sides, and the notifications of the program.

Every message of the program is data. A line that is not a message is reported and left out, a request without
a handler gets an error, and the number of open requests is bounded.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from subagent_server.domain.errors import RunRefused
from subagent_server.toolkit.agent_process import AgentProcess
from subagent_server.toolkit.run_context import RunOver

MOST_OPEN = 32
"""Requests of a program that wait for their answers at once; one more is refused."""
_LONGEST_NOISE = 2_000

Message = dict[str, Any]
Answer = Callable[[str, Message], Awaitable[Message]]
"""Answers a request of the program. Raises ProtocolError to refuse it."""
Notice = Callable[[str, Message], None]


class ProtocolError(Exception):
    """An error answer of JSON-RPC, from either side."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data


class ProgramGone(Exception):
    """Nothing more is heard of the program: its output has ended, or the run has."""


NO_METHOD = -32601
_BUSY = -32000


class JsonRpc:
    """One connection. `listen` has to run as long as any call is open."""

    def __init__(
        self,
        process: AgentProcess,
        answer: Answer,
        notice: Notice,
        noise: Callable[[str], None],
        **header: str,
    ) -> None:
        """`noise` gets lines that are no messages; `header` is in each message that is sent."""
        self._process = process
        self._answer = answer
        self._notice = notice
        self._noise = noise
        self._header = header
        self._called: dict[int, asyncio.Future[Message]] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self._last_id = 0
        self._is_over = False
        self._refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def listen(self) -> None:
        """Take the messages of the program until its output ends.

        Raises:
            RunRefused, RunOver: what the program asked ends the run.
        """
        reading = asyncio.create_task(self._read())
        try:
            await asyncio.wait([reading, self._refused], return_when=asyncio.FIRST_COMPLETED)
            if self._refused.done():
                self._refused.result()
            await reading
        finally:
            self._is_over = True
            for task in (reading, *self._answering):
                task.cancel()
            for answered in self._called.values():
                if not answered.done():
                    answered.set_exception(ProgramGone())

    async def _read(self) -> None:
        async for line in self._process.lines():
            if line.strip():
                await self._take(line)

    async def call(self, method: str, **params: Any) -> Message:
        """Call the program and return its result.

        Raises:
            ProtocolError: it answers with an error.
            ProgramGone: nothing is heard of it any more.
        """
        if self._is_over:
            raise ProgramGone
        self._last_id += 1
        answered = self._called[self._last_id] = asyncio.get_running_loop().create_future()
        sending = asyncio.ensure_future(self._send(id=self._last_id, method=method, params=params))
        try:
            await asyncio.wait([sending, answered], return_when=asyncio.FIRST_COMPLETED)
            result: Message = await answered
            return result
        finally:
            self._called.pop(self._last_id, None)
            sending.cancel()

    async def notify(self, method: str, **params: Any) -> None:
        """Send a notification."""
        await self._send(method=method, params=params)

    # -- what the program sends

    async def _take(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            self._noise(line[:_LONGEST_NOISE].decode("utf-8", "replace"))
            return
        method, request_id = message.get("method"), message.get("id")
        if not isinstance(method, str):
            self._answered(message)
        elif request_id is None:
            self._notice(method, members(message.get("params")))
        elif len(self._answering) >= MOST_OPEN:
            await self._refuse(request_id, ProtocolError(_BUSY, f"More than {MOST_OPEN} requests are open."))
        else:
            task = asyncio.create_task(self._respond(request_id, method, members(message.get("params"))))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)

    def _answered(self, message: Message) -> None:
        number = message.get("id")
        answered = self._called.get(number) if isinstance(number, int) else None
        if answered is None or answered.done():
            return  # an answer to nothing
        if "error" in message:
            error = members(message["error"])
            code = error.get("code")
            words = str(error.get("message") or "it gave no reason")
            answered.set_exception(
                ProtocolError(code if isinstance(code, int) else 0, words, error.get("data"))
            )
        else:
            answered.set_result(members(message.get("result")))

    async def _respond(self, request_id: Any, method: str, params: Message) -> None:
        try:
            result = await self._answer(method, params)
        except ProtocolError as error:
            await self._refuse(request_id, error)
        except (RunRefused, RunOver) as refusal:
            if not self._refused.done():
                self._refused.set_exception(refusal)
        else:
            await self._send(id=request_id, result=result)

    async def _refuse(self, request_id: Any, error: ProtocolError) -> None:
        await self._send(id=request_id, error={"code": error.code, "message": str(error)})

    async def _send(self, **message: Any) -> None:
        text = json.dumps({**self._header, **message})
        await self._process.write(text.encode() + b"\n")


def members(value: Any) -> Message:
    """Return a JSON object as it is, and nothing in place of anything else."""
    return value if isinstance(value, dict) else {}


def text_of(value: Any) -> str:
    """Return a text as it is, and an empty one in place of anything else."""
    return value if isinstance(value, str) else ""


def count_of(value: Any) -> int | None:
    """Return a count as it is, and None in place of anything else."""
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53
    return value if is_count else None
