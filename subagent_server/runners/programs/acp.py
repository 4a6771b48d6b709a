"""Agents that speak the Agent Client Protocol: one session, one prompt, and permissions as questions.

Gemini CLI is one of them (`gemini.py`); any other is started by `command` and `args`.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from subagent_server.domain.definitions import ServerDefinition
from subagent_server.domain.errors import RunRefused
from subagent_server.domain.records import Failure
from subagent_server.runners.outcome import Outcome
from subagent_server.runners.programs.acp_updates import AcpUpdates, tool_name
from subagent_server.runners.programs.dialect import Launch, ProgramTask, about_login
from subagent_server.runners.programs.events import ProgramEvents
from subagent_server.runners.programs.json_rpc import (
    NO_METHOD,
    JsonRpc,
    Message,
    ProgramGone,
    ProtocolError,
    count_of,
    members,
    text_of,
)
from subagent_server.toolkit.agent_process import AgentProcess
from subagent_server.toolkit.permission import Permissions

PROTOCOL = 1
_LOGIN = -32000
"""The code by which an agent says that it needs a login first."""
_QUIET_SECONDS = 1.0
"""Some agents repeat the conversation behind the answer to `session/load`: it is over after this silence."""
_ENDS = {
    "max_turn_requests": ("max_turns", "It reached its limit of turns."),
    "max_tokens": ("agent_error", "Its model reached the limit of tokens."),
    "refusal": ("agent_error", "Its model refused to go on."),
    "cancelled": ("agent_error", "It gave its turn up."),
}


class AcpDialect:
    """Implements `Dialect` for an agent that speaks the protocol."""

    title = "The agent"

    def __init__(self, task: ProgramTask, events: ProgramEvents, permissions: Permissions) -> None:
        self._task = task
        self._events = events
        self._permissions = permissions
        self._updates = AcpUpdates(events, task.agent.limits.max_turns, self._bound_turns, self.tool_of)
        self._rpc: JsonRpc | None = None
        self._session = ""
        self._is_cut = False
        events.counts("tool_calls")  # of turns the protocol does not tell

    def launch(self) -> Launch:
        """Return its command line."""
        return Launch([self._task.agent.command or "", *self._task.agent.args])

    def first_words(self) -> str:
        """Return the words that begin the conversation: the protocol has no place for a system prompt."""
        return self._task.system

    def login_hint(self) -> str:
        """Return what a person does when the agent asks for a login."""
        return f"Start `{self._task.agent.command}` by hand once and log in."

    def tool_of(self, call: Message) -> str:
        """Return the tool of a call."""
        return tool_name(call)

    async def before_resuming(self, session: str) -> None:
        """Wait until a session can be resumed."""

    async def converse(self, process: AgentProcess) -> Outcome:
        """Open the session, give it the task, and return how the turn ended."""
        self._rpc = JsonRpc(process, self._answer, self._heard, self._events.complain, jsonrpc="2.0")
        listening = asyncio.create_task(self._rpc.listen())
        talking = asyncio.create_task(self._talk(self._rpc))
        try:
            await asyncio.wait([talking, listening], return_when=asyncio.FIRST_COMPLETED)
            if listening.done() and not talking.done():
                await listening
            return await talking
        except ProgramGone:
            code = await process.exited()
            how = (
                "its output ended" if code is None else f"signal {-code}" if code < 0 else f"exit code {code}"
            )
            return self._failed("agent_error", f"{self.title} ended in the middle of its work ({how}).")
        except ProtocolError as error:
            return self._refused(error)
        finally:
            listening.cancel()
            talking.cancel()

    def interrupt(self, process: AgentProcess) -> None:
        """Cancel its turn, or interrupt the program if it has none."""
        if not self._session:
            process.interrupt()
        else:
            self._cancel()

    def _cancel(self) -> None:
        assert self._rpc is not None
        self._cancelling = asyncio.ensure_future(self._rpc.notify("session/cancel", sessionId=self._session))

    async def _talk(self, rpc: JsonRpc) -> Outcome:
        hello = await rpc.call(
            "initialize",
            protocolVersion=PROTOCOL,
            clientCapabilities={"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False},
            clientInfo={"name": "subagent", "version": "1"},
        )
        if hello.get("protocolVersion") != PROTOCOL:
            raise RunRefused(
                "config",
                f"{self.title} speaks version {hello.get('protocolVersion')!r} of the Agent Client Protocol.",
                f"Install one that speaks version {PROTOCOL}.",
            )
        is_new = await self._open(rpc, members(hello.get("agentCapabilities")))
        await self._events.session(self._session)
        self._updates.begin()
        # its own words first: text that begins with a slash would be a command of the program
        parts = [self.first_words()] if is_new else []
        words = "\n\n".join(["Your task:", *parts, self._task.prompt])
        ended = await rpc.call(
            "session/prompt", sessionId=self._session, prompt=[{"type": "text", "text": words}]
        )
        self._updates.flush()
        self._spend(ended)
        return self._outcome(text_of(ended.get("stopReason")))

    async def _open(self, rpc: JsonRpc, capabilities: Message) -> bool:
        """Open a session, or the one to carry on. Return whether it is new."""
        where = {"cwd": str(self._task.cwd), "mcpServers": self._servers()}
        resumes = self._task.resumes
        if resumes is None:
            opened = await rpc.call("session/new", **where)
            self._session = text_of(opened.get("sessionId"))
            return True
        if capabilities.get("loadSession") is not True:
            raise RunRefused(
                "config",
                f"{self.title} cannot take a session up again.",
                "Start a new run, and put into its prompt what it needs to know.",
            )
        await self.before_resuming(resumes)
        await rpc.call("session/load", sessionId=resumes, **where)
        self._session = resumes
        while self._updates.quiet_seconds < _QUIET_SECONDS:
            await asyncio.sleep(_QUIET_SECONDS - self._updates.quiet_seconds)
        return False

    def _servers(self) -> list[Message]:
        child = self._task.child
        own: Message = {"name": child.name, "command": child.command, "args": list(child.args), "env": []}
        return [own, *(_server(name, server) for name, server in self._task.agent.mcp_servers.items())]

    # -- what it tells and asks

    def _heard(self, method: str, params: Message) -> None:
        if method == "session/update":
            self._updates.take(members(params.get("update")))
        else:
            self._events.other(method, params)

    def _bound_turns(self) -> None:
        self._is_cut = True
        self._cancel()

    async def _answer(self, method: str, params: Message) -> Message:
        """Answer a request: a permission is a question to the parent or a person."""
        if method != "session/request_permission":
            self._events.warn(f"{self.title} asked for {method}, which nobody can answer here.")
            raise ProtocolError(NO_METHOD, "Nobody can answer this here.")
        call = members(params.get("toolCall"))
        tool, arguments = self._updates.asked(call)
        if tool in self._own_tools:
            is_allowed, reason = True, ""
        else:
            permission = await self._permissions.ask(tool, arguments)
            is_allowed, reason = permission.allowed, permission.reason
        kinds = ("allow_once", "allow_always") if is_allowed else ("reject_once",)
        choice = _choice(params.get("options"), kinds)
        if not is_allowed:
            self._updates.denied(call, reason)
        if choice is None:
            return {"outcome": {"outcome": "cancelled"}}
        return {"outcome": {"outcome": "selected", "optionId": choice}}

    @property
    def _own_tools(self) -> frozenset[str]:
        """The names under which the child's server may appear: asking whether it may ask leads nowhere."""
        names = ("ask_parent", "update_status", "check_status")
        return frozenset(f"{start}{name}" for name in names for start in self.own_prefixes())

    def own_prefixes(self) -> Sequence[str]:
        """Return what may stand before the name of a tool of the child's server."""
        return (f"mcp__{self._task.child.name}__",)

    # -- how it ended

    def _outcome(self, reason: str) -> Outcome:
        if self._is_cut:
            limit = self._task.agent.limits.max_turns
            return self._failed("max_turns", f"It reached the limit of {limit} turns.", "Raise `maxTurns`.")
        if reason in _ENDS:
            return self._failed(*_ENDS[reason])
        if reason != "end_turn":
            return self._failed("agent_error", f"{self.title} ended its turn as {reason!r}.")
        if not self._events.text.strip():
            return self._failed("agent_error", f"{self.title} ended its turn without a word.")
        return Outcome(self._events.text)

    def _refused(self, error: ProtocolError) -> Outcome:
        self._updates.flush()
        details = text_of(members(error.data).get("details"))
        said = f"{error} ({details})" if details else str(error)
        if error.code == _LOGIN:
            hint = about_login(self._task.agent, self.login_hint())
            return self._failed("config", f"{self.title} is not logged in: {said}", hint)
        return self._failed("model_error", f"{self.title} failed: {said}")

    def _failed(self, code: str, message: str, hint: str | None = None) -> Outcome:
        hint = hint or "Look at run.log, which has all that it said."
        return Outcome(self._events.text, failure=Failure(code=code, message=message, hint=hint))

    def _spend(self, ended: Message) -> None:
        """Take the tokens that the answer to the prompt tells of, in either form that agents use."""
        usage = members(ended.get("usage"))
        quota = members(members(members(ended.get("_meta")).get("quota")).get("token_count"))
        found = {
            "input_tokens": count_of(usage.get("inputTokens") or quota.get("input_tokens")),
            "output_tokens": count_of(usage.get("outputTokens") or quota.get("output_tokens")),
            "cache_read_tokens": count_of(usage.get("cachedReadTokens")),
            "cache_write_tokens": count_of(usage.get("cachedWriteTokens")),
            "cost_usd": self._updates.cost_usd,
        }
        told = {name: figure for name, figure in found.items() if figure is not None}
        self._events.spend(self._events.usage.model_copy(update=told))


def _choice(options: Any, kinds: Sequence[str]) -> str | None:
    """Return the option of the first of these kinds that is offered."""
    offered = [members(option) for option in options] if isinstance(options, list) else []
    for kind in kinds:
        for option in offered:
            if option.get("kind") == kind and isinstance(option.get("optionId"), str):
                return str(option["optionId"])
    return None


def _server(name: str, server: ServerDefinition) -> Message:
    """Return an MCP server of the agent in the form of the protocol."""
    if server.type == "stdio":
        return {"name": name, "command": server.command, "args": server.args, "env": _pairs(server.env)}
    return {"type": server.type, "name": name, "url": server.url, "headers": _pairs(server.headers)}


def _pairs(values: Mapping[str, str]) -> list[Message]:
    return [{"name": name, "value": value} for name, value in values.items()]
