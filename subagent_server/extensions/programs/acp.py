"""Agents that speak the Agent Client Protocol: one session, one prompt, and permissions as questions.

The library of the protocol has its messages and their types.
"""

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

from acp import PROTOCOL_VERSION, RequestError, connect_to_agent, schema
from acp.client import ClientSideConnection
from pydantic import ValidationError

from subagent_server.extensions.programs.json_rpc import NO_METHOD, JsonLines, RpcConversation
from subagent_server.extensions.programs.program import (
    MCP_CONFIG,
    MOST_EVENTS,
    MOST_OPEN_CALLS,
    NO_MENTIONS,
    Launch,
    Message,
    ProgramEvents,
    ProgramTask,
    about_login,
    count_of,
    members,
    name_of,
    text_of,
)
from subagent_server.loop.runner import Outcome
from subagent_server.run.agent_definition import ServerDefinition
from subagent_server.run.errors import RunRefused
from subagent_server.run.records import first_problem
from subagent_server.toolbox.agent_process import AgentProcess
from subagent_server.toolbox.run_context import Permissions

_LOGIN = -32000
"""The code of an agent that needs a login first."""
_QUIET_SECONDS = 1.0
"""Some agents repeat the conversation behind the answer to `session/load`: it is over after this silence."""
_LONGEST_TEXT = 4 << 20
"""Characters of one text that is put together from its parts."""
_ENDS = {
    "max_turn_requests": ("It reached its limit of turns.", "max_turns"),
    "max_tokens": ("Its model reached the limit of tokens.", "agent_error"),
    "refusal": ("Its model refused to continue.", "agent_error"),
    "cancelled": ("It gave its turn up.", "agent_error"),
}
_EMPTY_REPLY = "Error: No response was returned. Send your message again to retry."
"""What Copilot prints if a model has answered, and used tokens, without a word (seen in 1.0.102)."""
_RETRY = re.compile(r"Info: [^\n]*[Rr]etrying\.\.\.")
"""What Copilot prints if a request failed, as a piece of its model's text (seen in 1.0.102)."""
_NOTICES = ("Warning: ", "Config warning: ", "*Context compacted")
"""How codex-acp begins its own texts, those of its model and errors apart (read in 2.6.0)."""
_SILENT = (
    schema.UserMessageChunk,
    schema.AvailableCommandsUpdate,
    schema.CurrentModeUpdate,
    schema.SessionInfoUpdate,
)

_NAME = re.compile(r"mcp__\S+|[\w-]+(/[\w-]+)?")
"""A title that is the name of a tool: of opencode, or with its server before it, as of fast-agent."""
_Server = schema.HttpMcpServer | schema.SseMcpServer | schema.AcpMcpServer | schema.McpServerStdio
Call = schema.ToolCall | schema.ToolCallUpdate


ASKING_MODES = ("default", "ask", "read-only", "manual")
"""Modes in which agents ask before a tool that changes something; the first that the agent has is chosen.

`default` is that of Claude Code ("Always ask"), Gemini CLI and Qwen Code, `read-only` that of Codex.
"""
_ASKS_BY_ITSELF = "it asks for permissions by its own rules, so it may use tools without a question"


def _plain_mode(mode: str) -> str:
    """Return the name of a mode whose id may be an address with it at the end (Copilot)."""
    return mode.rpartition("#")[2].lower()


class AcpDialect:
    """Implements `Dialect` for an agent that speaks the protocol."""

    title = "The agent"

    def __init__(self, task: ProgramTask, events: ProgramEvents, permissions: Permissions) -> None:
        self._task = task
        self._events = events
        self._permissions = permissions
        most_turns = task.agent.limits.max_turns
        self._updates = _Updates(events, most_turns, self._bound_turns, self.tool_of, self._is_notice)
        self._session = ""
        self._is_cut = False
        events.counts("tool_calls")  # the protocol does not report turns

    def launch(self) -> Launch:
        """Return its command line. `{mcpConfig}` is for agents that take no stdio server with a session.

        Raises:
            RunRefused: `config`, if such an agent has a stdio server of its own, which would not reach it.
        """
        agent, args = self._task.agent, self._task.agent.args
        if any(MCP_CONFIG in word for word in args):
            if lost := [name for name, server in agent.mcp_servers.items() if server.type == "stdio"]:
                raise RunRefused(
                    "config",
                    f"mcpServers.{lost[0]} does not reach {agent.command}: it takes no stdio server.",
                    "Offer the server as `http`, or leave it out.",
                )
            config = str(self._task.write_mcp_config())
            args = [word.replace(MCP_CONFIG, config) for word in args]
        return Launch([agent.command or "", *args], NO_MENTIONS)

    def first_words(self) -> str:
        """Return the words that begin the conversation: the protocol has no field for a system prompt."""
        return self._task.system

    def login_hint(self) -> str:
        """Return what a person does when the agent asks for a login."""
        return f"Start `{self._task.agent.command}` by hand once and log in."

    def tool_of(self, call: Call) -> str:
        """Return the tool of a call: the protocol has its kind, and some agents add its name."""
        meta, title = members(call.field_meta), call.title or ""
        named = meta.get("toolName") or members(meta.get("claudeCode")).get("toolName")  # Qwen Code, Claude's
        # the title of other kinds is a command, a path or a description: words of the model
        is_name = call.kind == "other" and _NAME.fullmatch(title)
        return name_of(text_of(named) or (title if is_name else call.kind) or title) or "tool"

    def own_prefixes(self) -> Sequence[str]:
        """Return what may come before the name of a tool of the child's server."""
        return f"mcp__{self._task.child.name}__", f"{self._task.child.name}/"

    async def before_resuming(self, session: str) -> None:
        """Wait until a session can be resumed."""

    async def converse(self, process: AgentProcess) -> Outcome:
        """Open the session, send it the task, and return how the turn ended."""
        self._conversation = RpcConversation(self.title, self._events, self._permissions)
        client: Any = self  # without files and terminals: `_Lines` refuses requests for them
        self._agent = connect_to_agent(client, _Lines(process, self._events, self._updates))
        try:
            return await self._conversation.outcome(process, self._talk(self._agent))
        except RequestError as error:
            return self._failed_request(error)
        except ValidationError as error:
            what = first_problem(error)
            return self._events.failed(f"{self.title} does not keep its protocol: {what}.")
        finally:
            await self._agent.close()

    def interrupt(self, process: AgentProcess) -> None:
        """Cancel its turn, or interrupt the program if it has none."""
        if not self._session:
            process.interrupt()
        else:
            self._cancelling = asyncio.ensure_future(self._cancel())

    async def _cancel(self) -> None:
        with suppress(ConnectionError):  # it has exited by itself
            await self._agent.cancel(session_id=self._session)

    async def _talk(self, agent: ClientSideConnection) -> Outcome:
        hello = await agent.initialize(
            protocol_version=PROTOCOL_VERSION, client_info=schema.Implementation(name="subagent", version="1")
        )
        if hello.protocol_version != PROTOCOL_VERSION:
            raise RunRefused(
                "config",
                f"{self.title} speaks version {hello.protocol_version!r} of the Agent Client Protocol.",
                f"Install one that speaks version {PROTOCOL_VERSION}.",
            )
        await self._open(agent, hello.agent_capabilities)
        await self._events.session(self._session)
        self._updates.begin()
        # its own words first: text that begins with a slash would be a command of the program
        first = [] if self._task.resumes is not None else [self.first_words()]
        words = "\n\n".join(["Your task:", *first, self._task.prompt])
        block = schema.TextContentBlock(type="text", text=words)
        ended = await agent.prompt(session_id=self._session, prompt=[block])
        self._updates.flush()
        self._spend(ended)
        return self._outcome(ended)

    async def _open(self, agent: ClientSideConnection, capabilities: schema.AgentCapabilities | None) -> None:
        """Open the session to continue, or a new one."""
        child = self._task.child
        own = schema.McpServerStdio(name=child.name, command=child.command, args=list(child.args), env=[])
        servers: list[_Server] = [
            own,
            *(_server(name, server) for name, server in self._task.agent.mcp_servers.items()),
        ]
        cwd, resumes = str(self._task.cwd), self._task.resumes
        # the library passes on what is no such object
        if resumes is not None and getattr(capabilities, "load_session", None):
            await self.before_resuming(resumes)
            try:
                loaded = await agent.load_session(cwd=cwd, session_id=resumes, mcp_servers=servers)
            except RequestError as error:
                # Gemini CLI deletes a session that was loaded once: it finds an empty file of the same name
                self._events.session_lost(error)
            else:
                self._session = resumes
                await self._ask_first(agent, loaded)
                while (quiet := self._updates.quiet_seconds) < _QUIET_SECONDS:
                    await asyncio.sleep(_QUIET_SECONDS - quiet)
                return
        self._task = self._task.without_session()
        opened = await agent.new_session(cwd=cwd, mcp_servers=servers)
        self._session = opened.session_id
        await self._ask_first(agent, opened)

    async def _ask_first(
        self, agent: ClientSideConnection, opened: schema.NewSessionResponse | schema.LoadSessionResponse
    ) -> None:
        """Choose the mode in which the agent asks for permissions; note if it has none."""
        if opened.modes is None:
            self._events.note(f"{self.title} has no modes to choose from: {_ASKS_BY_ITSELF}.")
            return
        current = opened.modes.current_mode_id
        modes = {_plain_mode(mode.id): mode.id for mode in opened.modes.available_modes}
        wanted = next((modes[name] for name in ASKING_MODES if name in modes), None)
        if wanted is None:
            why = f"offers no mode in which it asks, and is in {current[:80]!r}"
            self._events.note(f"{self.title} {why}: {_ASKS_BY_ITSELF}.")
        elif wanted != current:
            try:
                await agent.set_session_mode(session_id=self._session, mode_id=wanted)
            except RequestError as error:
                self._events.note(
                    f"{self.title} stays in its mode {current[:80]!r} ({error}): {_ASKS_BY_ITSELF}."
                )

    # -- what it reports and asks, called by the library

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        """Take an update of the session."""
        self._updates.take(update)

    async def request_permission(
        self,
        session_id: str,
        tool_call: schema.ToolCallUpdate,
        options: list[schema.PermissionOption],
        **_: Any,
    ) -> schema.RequestPermissionResponse:
        """Answer a request for a permission: it is a question to the parent or a person."""
        tool, shown = self._updates.asked(tool_call)
        own = ("ask_parent", "update_status", "check_status")
        kinds: Sequence[str] = ("allow_once", "allow_always")
        # the child's server: asking whether it may ask leads nowhere
        if tool not in {f"{start}{name}" for name in own for start in self.own_prefixes()}:
            permission = await self._conversation.permission(tool, shown)
            if not permission.allowed:
                kinds = ("reject_once",)
                self._updates.denied(tool_call, permission.reason)
        choices = [each.option_id for kind in kinds for each in options if each.kind == kind]
        if not choices:
            return schema.RequestPermissionResponse(outcome=schema.DeniedOutcome(outcome="cancelled"))
        chosen = schema.AllowedOutcome(outcome="selected", option_id=choices[0])
        return schema.RequestPermissionResponse(outcome=chosen)

    def _bound_turns(self) -> None:
        self._is_cut = True
        self._cancelling = asyncio.ensure_future(self._cancel())

    # -- how it ended

    def _outcome(self, ended: schema.PromptResponse) -> Outcome:
        if self._is_cut:
            limit = self._task.agent.limits.max_turns
            return self._events.failed(
                f"It reached the limit of {limit} turns.", "max_turns", "Raise `maxTurns`."
            )
        if ended.stop_reason in _ENDS:
            return self._events.failed(*_ENDS[ended.stop_reason])
        if self._is_error(ended):
            text, _ = self._updates.last_part
            return self._events.failed(f"Its model did not answer: {text.strip()}", "model_error")
        if not self._events.text.strip():
            return self._events.failed(f"{self.title} ended its turn without an answer.")
        return Outcome(self._events.text)

    def _is_error(self, ended: schema.PromptResponse) -> bool:
        """Whether its last words mean that its model did not answer (bad key, busy, down).

        It ends its turn as if all were well, and the text has no id (seen in 1.0.102 and 2.6.0).
        """
        text, message = self._updates.last_part
        match self._command:
            case "copilot":
                is_error = text == _EMPTY_REPLY or (ended.usage is None and text.startswith("Error: "))
            case "codex-acp":
                is_error = bool(text) and not text.startswith(_NOTICES)
            case _:
                is_error = False
        return message is None and is_error

    def _is_notice(self, update: Any) -> bool:
        """Whether an update is a text of the program besides its model."""
        if not isinstance(update, schema.AgentMessageChunk):
            return False
        match self._command:
            case "copilot":
                return _RETRY.fullmatch(getattr(update.content, "text", "")) is not None
            case "codex-acp":
                return update.message_id is None
            case _:
                return False

    @property
    def _command(self) -> str:
        return Path(self._task.agent.command or "").name

    def _failed_request(self, error: RequestError) -> Outcome:
        self._updates.flush()
        details = text_of(members(error.data).get("details"))
        message = f"{error} ({details})" if details else str(error)
        if error.code == _LOGIN:
            hint = about_login(self._task.agent, self.login_hint())
            return self._events.failed(f"{self.title} is not logged in: {message}", "config", hint)
        return self._events.failed(f"{self.title} failed: {message}", "model_error")

    def _spend(self, ended: schema.PromptResponse) -> None:
        """Take the tokens that the answer to the prompt reports; Gemini CLI has a form of its own."""
        quota = members(members(members(ended.field_meta).get("quota")).get("token_count"))
        found = {
            "input_tokens": count_of(quota.get("input_tokens")),
            "output_tokens": count_of(quota.get("output_tokens")),
            "cost_usd": self._cost(),
        }
        # opencode reports its last call alone (seen in 1.18.33)
        is_part = self._command == "opencode" and self._events.usage.tool_calls
        if (usage := ended.usage) and not is_part:
            read, written = count_of(usage.cached_read_tokens), count_of(usage.cached_write_tokens)
            cached = (read or 0) + (written or 0)
            # Copilot's input has what its caches have, so that is not in the total again (seen in 1.0.102)
            is_input = usage.total_tokens == usage.input_tokens + usage.output_tokens
            found |= {
                "input_tokens": count_of(usage.input_tokens - (cached if is_input else 0)),
                "output_tokens": count_of(usage.output_tokens),
                "cache_read_tokens": read,
                "cache_write_tokens": written,
            }
        known = {name: figure for name, figure in found.items() if figure is not None}
        self._events.spend(self._events.usage.model_copy(update=known))

    def _cost(self) -> Decimal | None:
        """Return the cost of the run; that of the session has those of the runs before it too."""
        total, spent = self._updates.cost_usd, self._task.spent
        return None if total is None or spent is None or total < spent else total - spent


class _Lines(JsonLines):
    """The lines of an agent: a line that breaks the protocol does not reach the library."""

    def __init__(self, process: AgentProcess, events: ProgramEvents, updates: "_Updates") -> None:
        super().__init__(process, events)
        self._updates = updates

    async def passes(self, method: str, message: Message) -> bool:
        if method == "session/update":
            try:
                schema.SessionNotification.model_validate(message.get("params"))
            except ValidationError:
                update = members(members(message.get("params")).get("update"))
                self._updates.unknown(text_of(update.get("sessionUpdate")), update)
                return False
        elif "id" not in message:
            self._events.other(method, members(message.get("params")))
            return False
        elif method != "session/request_permission":
            self._events.warn(f"The agent asked for {method}, which nobody can answer here.")
            await self.refuse(message, NO_METHOD, "Nobody can answer this here.")
            return False
        return True


class _Updates:
    """Reports to `ProgramEvents` what an agent does. Nothing counts before `begin`, because
    agents repeat old conversations.

    What `is_notice` is a warning, and no text of the model.
    `bound` is called once, when the calls of turn `most_turns` have ended and another turn would follow. The
    protocol does not report turns, so calls that are open at the same time are taken for one.
    """

    def __init__(
        self,
        events: ProgramEvents,
        most_turns: int,
        bound: Callable[[], None],
        tool_of: Callable[[Call], str],
        is_notice: Callable[[Any], bool],
    ) -> None:
        self.cost_usd: Decimal | None = None
        self._events = events
        self._tool_of = tool_of
        self._is_notice = is_notice
        self._most_turns = most_turns
        self._bound = bound
        self._has_begun = False
        self._last = time.monotonic()
        self._parts: list[str] = []
        self._size = 0
        self._is_thought = False
        self._message: str | None = None
        self.last_part: tuple[str, str | None] = "", None
        """The last piece of text, and the id of its message."""
        self._early: dict[str, Call] = {}
        """Calls that have not begun, as first reported: the model may still write their arguments."""
        self._arguments: dict[str, Message] = {}
        """Of calls that have not ended, as people are shown them."""
        self._open: dict[str, str] = {}
        self._closed: set[str] = set()
        self._rounds = 0

    @property
    def quiet_seconds(self) -> float:
        """How long ago the last update came."""
        return time.monotonic() - self._last

    def begin(self) -> None:
        """From here on updates are of this run."""
        self._has_begun = True

    def take(self, update: Any) -> None:
        """Take an update."""
        self._last = time.monotonic()
        text = getattr(getattr(update, "content", None), "text", "")
        if self._has_begun and self._is_notice(update):
            self.flush()
            self.last_part = text, None
            self._events.complain(text.strip())
            return
        self._events.progress()
        if not self._has_begun:
            return
        match update:
            case schema.AgentMessageChunk() | schema.AgentThoughtChunk():
                is_thought = isinstance(update, schema.AgentThoughtChunk)
                self._add(text, update.message_id, is_thought=is_thought)
            case schema.ToolCallStart() | schema.ToolCallProgress():
                self._call(update)
            case schema.UsageUpdate(cost=schema.Cost(currency="USD", amount=amount)) if 0 <= amount < 1e9:
                self.cost_usd = Decimal(str(round(amount, 6)))
            case schema.UsageUpdate():
                pass
            case _ if not isinstance(update, _SILENT):
                self.unknown(update.session_update, update.model_dump(mode="json", by_alias=True))

    def unknown(self, kind: str, update: Message) -> None:
        """Take an update that is not looked into."""
        self._last = time.monotonic()
        self._events.progress()
        if self._has_begun:
            self.flush()
            self._events.other(kind, update)

    def flush(self) -> None:
        """Report the text that has been put together."""
        text, self._parts, self._size = "".join(self._parts), [], 0
        if self._is_thought:
            self._events.think(text)
        else:
            self._events.say(text)

    def asked(self, call: schema.ToolCallUpdate) -> tuple[str, Message]:
        """Take a tool call for which permission is asked.

        Return its tool, named as at its beginning, and what people are shown of it. The request may hold
        nothing but the id (Mistral Vibe 3.0.3).
        """
        self.flush()
        self._begun(call)
        call_id, shown = name_of(call.tool_call_id), _shown(call)
        if not call.raw_input and (known := self._arguments.get(call_id)):
            shown = {**shown, "arguments": known}  # apart: an argument may be called `title`
        return self._open.get(call_id) or self._tool_of(call), shown

    def denied(self, call: schema.ToolCallUpdate, reason: str) -> None:
        """Close a call that was not allowed: not every agent reports its end."""
        self._end(name_of(call.tool_call_id), reason, is_error=True)

    def _add(self, text: str, message: str | None, *, is_thought: bool) -> None:
        self.last_part = text, message
        if (is_thought, message) != (self._is_thought, self._message):
            self.flush()
            self._is_thought, self._message = is_thought, message
        if self._size < _LONGEST_TEXT:
            self._parts.append(text)
            self._size += len(text)

    def _call(self, call: Call) -> None:
        self.flush()
        if (call_id := name_of(call.tool_call_id)) not in self._closed:
            if call.raw_input and len(self._arguments) < MOST_OPEN_CALLS:
                self._arguments[call_id] = _shown(call)
            if call.status == "pending" and len(self._early) < MOST_OPEN_CALLS:
                self._early.setdefault(call_id, call)
                return
            self._begun(call)
            if call.status in ("completed", "failed"):
                self._end(call_id, _texts(call), is_error=call.status == "failed")

    def _begun(self, call: Call) -> None:
        call_id = name_of(call.tool_call_id)
        if call_id in self._open or call_id in self._closed or len(self._open) >= MOST_OPEN_CALLS:
            return
        if not self._open:
            self._rounds += 1
        first = self._early.pop(call_id, call)  # later updates need not repeat name and arguments
        tool = self._open[call_id] = self._tool_of(first)
        self._events.call(call_id, tool, _shown(call if call.raw_input else first))

    def _end(self, call_id: str, text: str, *, is_error: bool) -> None:
        if call_id not in self._open:
            return
        self._arguments.pop(call_id, None)
        if len(self._closed) < MOST_EVENTS:
            self._closed.add(call_id)
        self._events.result(call_id, self._open.pop(call_id), text, is_error=is_error)
        if not self._open and self._rounds == self._most_turns:
            self._bound()


def _shown(call: Call) -> Message:
    """Return what people are shown of a call: the arguments if the agent sends them, else its words."""
    if isinstance(call.raw_input, dict):
        return call.raw_input
    written = call.raw_input if isinstance(call.raw_input, str) else None  # as JSON (Mistral Vibe)
    locations = [location.model_dump(exclude_none=True) for location in call.locations or []]
    facts = {"title": call.title, "input": written, "locations": locations, "text": _texts(call)}
    return {name: value for name, value in facts.items() if value}


def _texts(call: Call) -> str:
    """Return the text of a call: what it printed, or the change that it makes."""
    parts = []
    for part in call.content or []:
        match part:
            case schema.FileEditToolCallContent():
                parts.append(f"{part.path}:\n{part.new_text}")
            case schema.ContentToolCallContent(content=schema.TextContentBlock(text=text)):
                parts.append(text)
    return "\n".join(part for part in parts if part)


def _server(name: str, server: ServerDefinition) -> _Server:
    """Return an MCP server of the agent in the form of the protocol."""
    if server.type == "stdio":
        env = [schema.EnvVariable(name=key, value=value) for key, value in server.env.items()]
        return schema.McpServerStdio(name=name, command=server.command or "", args=server.args, env=env)
    headers = [schema.HttpHeader(name=key, value=value) for key, value in server.headers.items()]
    if server.type == "sse":
        return schema.SseMcpServer(type="sse", name=name, url=server.url or "", headers=headers)
    return schema.HttpMcpServer(type="http", name=name, url=server.url or "", headers=headers)
