"""A server over the whole of a run: connected, called, restarted once if it dies, closed."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from mcp.shared.dispatcher import ProgressFnT
from mcp_types import CallToolResult, Tool

from subagent_server.domain.definitions import ServerDefinition
from subagent_server.domain.secrets import Masker
from subagent_server.host.directory import Directory
from subagent_server.sandbox.server_places import ServerStart
from subagent_server.toolkit.mcp_servers.reasons import ServerLost, ServerTrouble
from subagent_server.toolkit.mcp_servers.server_log import ServerLog
from subagent_server.toolkit.mcp_servers.session import Mode, ServerSession

_PROGRESS_SECONDS = 2.0
"""Progress of a call comes into the journal no more often than this."""
_LEAST_PROBE_SECONDS = 20.0
"""With less time than this, a server that does not answer is asked in the old way after half of it."""


@dataclass(frozen=True)
class ServerContext:
    """The surroundings of a run's servers.

    `start` says how a stdio server is started; `record` appends to the journal, `logs` holds their log files.
    """

    start: Callable[[ServerDefinition, str], ServerStart]
    record: Callable[..., None]
    masker: Masker = field(default_factory=Masker)
    logs: Directory | None = None


@dataclass(frozen=True)
class CallAnswer:
    """The result of a call, with remarks for the model."""

    result: CallToolResult
    remarks: list[str]


class ServerConnection:
    """One server. Its calls may overlap."""

    def __init__(self, name: str, definition: ServerDefinition, around: ServerContext) -> None:
        self.name = name
        self.definition = definition
        self.tools: list[Tool] = []
        self.session: ServerSession | None = None
        self._around = around
        self._log = ServerLog(name, around.logs, around.masker, self._record_line)
        self._may_restart = True
        self._gone: str | None = None
        self._news: list[str] = []
        self._restarting = asyncio.Lock()

    def _record_line(self, server: str, line: str) -> None:
        self._around.record("server_log", server=server, text=line)

    async def open(self) -> None:
        """Connect and list the tools, within the `timeout` of the server.

        Raises:
            ServerTrouble: the server cannot be used.
        """
        self._log.forget()
        seconds = self.definition.timeout
        try:
            async with asyncio.timeout(seconds) as limit:
                self.tools = await self._connected()
            self._log.handshake_over()
        except TimeoutError as error:
            if not limit.expired():
                raise
            what = f"did not connect and list its tools within {seconds:g} s"
            raise ServerTrouble(self._with_remedy(what)) from error

    async def _connected(self) -> list[Tool]:
        """Connect by detecting the era of the protocol; if that fails, in the old era.

        Some servers of the old era end, or fall silent, if the first message is not the one they know.
        """
        seconds = self.definition.timeout
        try:
            async with asyncio.timeout(seconds / 2 if seconds < _LEAST_PROBE_SECONDS else None):
                return await self._begin("auto")
        except TimeoutError:
            pass
        except ServerTrouble as trouble:
            if self.session is None or not self.session.ended_itself:
                raise type(trouble)(self._with_remedy(trouble.what)) from trouble
        self._log.forget()
        try:
            return await self._begin("legacy")
        except ServerTrouble as trouble:
            raise type(trouble)(self._with_remedy(trouble.what)) from trouble

    async def _begin(self, mode: Mode) -> list[Tool]:
        self.session = session = ServerSession(
            self.definition, partial(self._around.start, self.definition, self.name), self._log, mode
        )
        try:
            return await session.open()
        except (ServerTrouble, asyncio.CancelledError):
            await session.aclose(hurry=True)
            raise

    def _with_words(self, what: str) -> str:
        words = self._log.tail
        return f"{what}; it said: {words}" if words else what

    def _with_remedy(self, what: str) -> str:
        """Return the words on a failure to connect, with the key that would help, if it is known."""
        words = self._with_words(what)
        remedy = self.session.remedy(words) if self.session is not None else ""
        return f"{words}; {remedy}" if remedy else words

    # -- calls

    async def call(self, tool: str, arguments: dict[str, Any]) -> CallAnswer:
        """Call a tool of the server.

        Raises:
            ServerTrouble: the call failed; `what` is a whole sentence for the model.
        """
        session = await self._living()
        try:
            result = await session.call(
                tool, arguments, self.definition.call_timeout_seconds, self._progress(tool)
            )
        except ServerLost as loss:
            words = self._with_words(loss.what)
            outcome = await self._restarted(session, words)
            raise ServerTrouble(
                f"The MCP server {self.name} {words}. It happened during this call, so what the call did is "
                f"unknown. {outcome}"
            ) from loss
        except ServerTrouble as trouble:
            raise type(trouble)(f"The MCP server {self.name} {trouble.what}.") from trouble
        remarks, self._news = self._news, []
        return CallAnswer(result, remarks)

    async def _living(self) -> ServerSession:
        """Return the session, a new one if the server has died since the last call."""
        session = self.session
        if session is not None and session.is_lost and self._gone is None:
            words = self._with_words(session.why_lost())
            outcome = await self._restarted(session, words)
            news = f"The MCP server {self.name} {words}. {outcome}"
            self._news += [news] if self._gone is None and news not in self._news else []
        if self._gone is not None or self.session is None:
            raise ServerTrouble(f"The MCP server {self.name} is gone: {self._gone}. Go on without its tools.")
        return self.session

    async def _restarted(self, lost: ServerSession, how: str) -> str:
        """Restart the server, once in a run, and return a sentence on it for the model."""
        async with self._restarting:
            if self.session is lost and self._gone is None:
                await self._restart(lost, how)
        if self._gone is not None:
            return f"It is not {self._again()} ({self._gone}): go on without its tools."
        return f"It was {self._again()}, and what it kept in memory is lost."

    def _again(self) -> str:
        return "started again" if self.definition.type == "stdio" else "connected again"

    async def _restart(self, lost: ServerSession, how: str) -> None:
        if not self._may_restart:
            self._gone = f"it {how}, for the second time"
            self._around.record("warning", message=f"The MCP server {self.name} {how}, for the second time.")
            await lost.aclose(hurry=True)
            return
        self._may_restart = False
        self._around.record("warning", message=f"The MCP server {self.name} {how}; it is {self._again()}.")
        await lost.aclose(hurry=True)
        known = self.tools
        try:
            await self.open()
        except ServerTrouble as trouble:
            self._gone = f"it {trouble.what}"
            self._around.record("warning", message=f"The MCP server {self.name} {trouble.what}.")
        self.tools = known

    @property
    def warnings(self) -> list[str]:
        """The tools that it lists and that are left out, a sentence each."""
        faults = self.session.faults if self.session is not None else []
        return [f"The MCP server {self.name} {fault}." for fault in faults]

    def facts(self) -> dict[str, Any]:
        """Return the name, version and instructions that the server has given."""
        return self.session.facts() if self.session is not None else {}

    def _progress(self, tool: str) -> ProgressFnT:
        last = -_PROGRESS_SECONDS

        async def report(progress: float, total: float | None, message: str | None) -> None:
            nonlocal last
            now = time.monotonic()
            if now - last >= _PROGRESS_SECONDS:
                last = now
                facts = {"progress": progress, "total": total, "message": message and message[:500]}
                known = {key: value for key, value in facts.items() if value is not None}
                self._around.record("tool_progress", server=self.name, toolName=tool, **known)

        return report

    async def aclose(self, *, hurry: bool = False) -> None:
        """Leave the server."""
        if self.session is not None:
            await self.session.aclose(hurry=hurry)
