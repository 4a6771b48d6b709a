"""Dialects that are JSON-RPC, a message a line: the connection is that of the library of one such protocol.

Every line is data: one that is no message is reported to the run and dropped, and the number of open
requests of the program is bounded.
"""

import asyncio
import json
from collections.abc import Coroutine
from typing import Any

from acp import RequestError

from subagent_server.extensions.programs.program import Message, ProgramEvents, parsed
from subagent_server.loop.runner import Outcome
from subagent_server.run.errors import SubagentError
from subagent_server.toolbox.agent_process import AgentProcess
from subagent_server.toolbox.run_context import Permission, Permissions, RunOver

MOST_OPEN = 32
"""Requests of a program that wait for their answers at once; one more is refused."""
NO_METHOD, _BUSY = -32601, -32000


class JsonLines:
    """The pipes of a program as the library reads and writes them (`acp` calls this a transport)."""

    def __init__(self, process: AgentProcess, events: ProgramEvents) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the output of the program has ended."""
        self._process = process
        self._events = events
        self._lines = process.lines()
        self._open = 0

    async def receive(self) -> Message | None:
        """Return the next message, None at the end of its output."""
        async for line in self._lines:
            message = parsed(line, self._events.complain)
            if message is None or not _is_message(message):
                continue
            method = message.get("method")
            if method is None or (await self.passes(method, message) and await self._has_room(message)):
                return message
        if not self.ended.done():
            self.ended.set_result(None)
        return None

    async def passes(self, method: str, message: Message) -> bool:
        """Whether the library gets a request or a notification; else it is dealt with here."""
        return True

    async def _has_room(self, message: Message) -> bool:
        if "id" not in message:
            return True
        if self._open >= MOST_OPEN:
            await self.refuse(message, _BUSY, f"More than {MOST_OPEN} requests are open.")
            return False
        self._open += 1
        return True

    async def refuse(self, message: Message, code: int, why: str) -> None:
        """Answer a request with an error."""
        error = {"code": code, "message": why}
        await self._write({"jsonrpc": "2.0", "id": message["id"], "error": error})

    async def send(self, message: Message) -> None:
        """Send a message."""
        if "method" not in message:
            self._open -= 1
        await self._write(message)

    async def _write(self, message: Message) -> None:
        await self._process.write(json.dumps(message).encode() + b"\n")

    async def close(self) -> None:
        """Do nothing: the process is ended by its runner."""


def _is_message(message: Message) -> bool:
    """Whether the library can take a message apart: its id is looked up, and its error has a code."""
    return (
        isinstance(message.get("id"), int | str | None)
        and isinstance(message.get("method", ""), str)
        and isinstance(message.get("error"), dict | None)
    )


class RpcConversation:
    """A conversation over JSON-RPC: it ends with its talk, a refusal of the run, or the program."""

    def __init__(self, title: str, events: ProgramEvents, permissions: Permissions) -> None:
        self._title = title
        self._events = events
        self._permissions = permissions
        self._refused: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    async def outcome(self, process: AgentProcess, talk: Coroutine[Any, Any, Outcome]) -> Outcome:
        """Return what `talk` returns. Raises SubagentError, RunOver: what the program asked ends the run."""
        talking = asyncio.ensure_future(talk)
        try:
            await asyncio.wait([talking, self._refused], return_when=asyncio.FIRST_COMPLETED)
            return (talking if talking.done() else self._refused).result()
        except ConnectionError:
            code = await process.exited()
            return self._events.broken_off(self._title, code, " in the middle of its work")
        finally:
            talking.cancel()

    async def permission(self, tool: str, arguments: Any, why: str = "", *, lasts: bool = True) -> Permission:
        """Ask whether a tool may be used. Raises RequestError: that ends the run."""
        try:
            return await self._permissions.ask(tool, arguments, why, lasts=lasts)
        except (SubagentError, RunOver) as error:
            if not self._refused.done():
                self._refused.set_exception(error)
            raise RequestError.internal_error() from error
