"""Codex, by its app-server: one thread, one turn, and its approvals as questions.

Configuration goes over the pipe with the thread, never on the command line. Codex has a sandbox of its own.
It cannot start in a box, so there it is switched off, and no approval is asked.
"""

import asyncio
import re
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from acp import RequestError
from acp.connection import Connection

from subagent_server.extensions.programs.json_rpc import NO_METHOD, JsonLines, RpcConversation
from subagent_server.extensions.programs.program import (
    LOOK_AT_LOG,
    MOST_OPEN_CALLS,
    Launch,
    Message,
    ProgramEvents,
    ProgramTask,
    about_login,
    count_of,
    items_of,
    members,
    name_of,
    text_of,
)
from subagent_server.extensions.programs.program_checks import program_of
from subagent_server.loop.runner import Outcome
from subagent_server.run.agent_definition import ServerDefinition
from subagent_server.run.errors import RunRefused
from subagent_server.run.records import TOKEN_COUNTS, UNKNOWN_USAGE, Usage, storable
from subagent_server.toolbox.agent_process import AgentProcess
from subagent_server.toolbox.run_context import Permissions

_CHILD_CALL_SECONDS = 24 * 60 * 60
"""A question may wait for its answer this long; the run has limits of its own."""
_STARTUP_SECONDS = 60
_QUIET = (
    *("thread/", "turn/started", "account/", "serverRequest/", "remoteControl/", "rawResponse/", "hook/"),
    *("skills/", "app/", "mcpServer/"),
)
"""The beginnings of notifications that are not about the run."""
_OF_THREAD = ("item/", "turn/", "thread/", "rawResponseItem/", "error")
_PROGRESS = ("/delta", "/outputDelta", "Delta", "/progress", "/patchUpdated")
_WARNINGS = frozenset({"warning", "configWarning", "guardianWarning", "deprecationNotice"})
SHELL, PATCH = "shell", "apply_patch"
_BAD = frozenset({"failed", "declined"})
_UNSEEN = frozenset({"userMessage", "contextCompaction", "enteredReviewMode", "exitedReviewMode"})
_MOST_RAW, _LONGEST_RAW = 1_000, 64_000
_MOST_CHANGES, _MOST_PATHS, _LONGEST_PATH = 1_000, 100, 1_000
"""Open patches, and of each the paths that a question shows."""
_MOST_LEVELS = 32
_KEYWORDS = {"type", "properties", "required", "additionalProperties", "items", "enum", "const"}
_KEYWORDS |= {"description", "title"}


class CodexDialect:
    """Implements `Dialect` for Codex."""

    def __init__(self, task: ProgramTask, events: ProgramEvents, permissions: Permissions) -> None:
        self._task = task
        self._events = events
        self._items = _Items(events)
        self._permissions = permissions
        self._thread = ""
        self._turn = ""
        self._before: Usage | None = None
        self._spent = UNKNOWN_USAGE
        events.counts("turns", "tool_calls")
        self._in_turn = False
        self._reached: str | None = None
        self._asking = ""
        self._unready = {*task.agent.mcp_servers, task.child.name}
        self._servers_known = asyncio.Event()
        self._takers: dict[str, Callable[[Message], None]] = {
            "item/started": self._started,
            "item/completed": self._completed,
            "rawResponseItem/completed": self._raw,
            "thread/tokenUsage/updated": self._spend,
            "turn/completed": lambda params: self._finish(members(params.get("turn"))),
            "error": self._erred,
            "mcpServer/startupStatus/updated": self._server_status,
            **dict.fromkeys(_WARNINGS, self._warned),
        }

    def launch(self) -> Launch:
        """Return its command line, the same for every run."""
        settings = ["check_for_update_on_startup=false", "analytics.enabled=false"]
        words = [word for setting in settings for word in ("-c", setting)]
        return Launch([program_of(self._task.agent) or "", *words, "app-server"])

    async def converse(self, process: AgentProcess) -> Outcome:
        """Open the thread, let it work through one turn, and return how that ended."""
        self._ended: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._conversation = RpcConversation("Codex", self._events, self._permissions)
        lines = JsonLines(process, self._events)
        self._connection = Connection(self._handle, lines)
        try:
            return await self._conversation.outcome(process, self._talk(lines))
        except RequestError as error:
            return self._events.failed(f"Codex refused {self._asking}: {str(error).rstrip('.')}.")
        finally:
            await self._connection.close()

    async def _talk(self, lines: JsonLines) -> Outcome:
        await self._open()
        either: list[asyncio.Future[Any]] = [self._ended, lines.ended]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not self._ended.done():
            raise ConnectionError
        return self._ended.result()

    def interrupt(self, process: AgentProcess) -> None:
        """Interrupt its turn, or the program if no turn has begun."""
        if not self._turn:
            process.interrupt()
        else:
            self._interrupting = asyncio.ensure_future(self._interrupt())

    async def _interrupt(self) -> None:
        with suppress(RequestError, ConnectionError):  # it ended by itself, or is ended by a signal soon
            await self._call("turn/interrupt", threadId=self._thread, turnId=self._turn)

    # -- the way to the turn

    async def _call(self, method: str, **params: Any) -> Message:
        self._asking = method
        return members(await self._connection.send_request(method, params))

    async def _open(self) -> None:
        client = {"name": "subagent", "version": "1"}
        # the raw events report the calls that its sandbox refuses
        hello = await self._call("initialize", clientInfo=client, capabilities={"experimentalApi": True})
        await self._connection.send_notification("initialized", {})
        self._check_home(text_of(hello.get("codexHome")))
        await self._check_login()
        opened = members((await self._opened()).get("thread"))
        self._thread = text_of(opened.get("id"))
        await self._events.session(self._thread)
        await self._servers_ready()
        schema = self._task.agent.output_schema
        begun = await self._call(
            "turn/start",
            threadId=self._thread,
            input=[{"type": "text", "text": self._task.prompt}],
            **({"outputSchema": schema} if schema is not None and _is_strict(schema) else {}),
        )
        self._turn = text_of(members(begun.get("turn")).get("id"))

    async def _servers_ready(self) -> None:
        """Return when its MCP servers have started: a turn that begins before lacks their tools."""
        try:
            await asyncio.wait_for(self._servers_known.wait(), _STARTUP_SECONDS)
        except TimeoutError:
            names = ", ".join(sorted(self._unready))
            self._events.warn(f"Codex did not say within {_STARTUP_SECONDS} s that it has started {names}.")

    async def _opened(self) -> Message:
        agent = self._task.agent
        params: dict[str, Any] = {
            # a model may not be the judge of what a model asks for
            "approvalsReviewer": "user",
            "approvalPolicy": "never" if self._task.boxed else "on-request",
            "sandbox": "danger-full-access" if self._task.boxed else "workspace-write",
            "developerInstructions": self._task.system,
            "config": self._config(),
            **({"model": agent.model} if agent.model not in (None, "inherit", "default") else {}),
        }
        if self._task.resumes is not None:
            try:
                words = {"threadId": self._task.resumes, "excludeTurns": True, "cwd": str(self._task.cwd)}
                return await self._call("thread/resume", **words, **params)
            except RequestError as error:
                self._events.session_lost(error)
                self._task = self._task.without_session()
        # Without `cwd`: named by a client, Codex trusts it for good, and starts the servers and hooks of a
        # `.codex` that came with it (seen in 0.171). It works where it was started.
        return await self._call("thread/start", experimentalRawEvents=True, **params)

    def _config(self) -> Message:
        agent, child = self._task.agent, self._task.child
        servers = {name: _server_entry(name, server) for name, server in agent.mcp_servers.items()}
        servers[child.name] = {
            "command": child.command,
            "args": list(child.args),
            "default_tools_approval_mode": "approve",
            "tool_timeout_sec": _CHILD_CALL_SECONDS,
            "startup_timeout_sec": _STARTUP_SECONDS,
        }
        effort = {"model_reasoning_effort": agent.effort} if agent.effort is not None else {}
        return {"mcp_servers": servers, **effort}

    def _check_home(self, home: str) -> None:
        """Codex's sandbox does not start from below the temporary directory, and no command shows why."""
        if home and not self._task.boxed and Path(home).is_relative_to(tempfile.gettempdir()):
            raise RunRefused(
                "config",
                f"Codex keeps its state in {home}: its sandbox cannot start from the temporary directory.",
                "Set CODEX_HOME to a directory elsewhere, or TMPDIR to another one.",
            )

    async def _check_login(self) -> None:
        """Without a login it would try to reconnect for ever."""
        try:
            account = await self._call("account/read", refreshToken=False)
        except RequestError:
            return  # an older version: the first request of its model will show it
        if account.get("requiresOpenaiAuth") is True and not account.get("account"):
            hint = about_login(self._task.agent, "Run `codex login` once, then start it again.")
            raise RunRefused("config", "Codex is not logged in.", hint)

    # -- what it asks

    async def _handle(self, method: str, params: Any, is_notification: bool) -> Message | None:
        """Take a message of Codex; the library calls it."""
        if is_notification:
            self._notified(method, members(params))
            return None
        return await self._answer(method, members(params))

    async def _answer(self, method: str, params: Message) -> Message:
        """Answer a request of Codex: its approvals are questions to the parent or a person."""
        why = text_of(params.get("reason"))
        match method:
            case "item/commandExecution/requestApproval":
                asked = {"command": params.get("command"), "cwd": params.get("cwd")}
                return {"decision": await self._decision(SHELL, asked, why)}
            case "item/fileChange/requestApproval":
                paths = self._items.changes.get(name_of(params.get("itemId")), [])
                root = {"grantRoot": params["grantRoot"]} if params.get("grantRoot") else {}
                decision = await self._decision(PATCH, {"paths": paths, **root}, why, lasts=not root)
                return {"decision": decision}
            case "item/permissions/requestApproval":
                wanted = members(params.get("permissions"))
                granted = await self._decision("more permissions", wanted, why, lasts=False) == "accept"
                return {"permissions": wanted if granted else {}, "scope": "turn"}
            case "mcpServer/elicitation/request":
                return await self._elicited(params)
            case _:
                self._events.warn(f"Codex asked for {method}, which nobody can answer here.")
                raise RequestError(NO_METHOD, "Nobody can answer this here; use the tool ask_parent.")

    async def _elicited(self, params: Message) -> Message:
        meta = members(params.get("_meta"))
        server = text_of(params.get("serverName"))
        if meta.get("codex_approval_kind") != "mcp_tool_call":
            self._events.warn(f"The MCP server {server} asked a person for something, which was declined.")
            return {"action": "decline"}
        tool = _mcp_tool(server, text_of(meta.get("tool_name")))
        decision = await self._decision(tool, meta.get("tool_params"), "")
        return {"action": decision, "content": {}}

    async def _decision(self, tool: str, arguments: Any, why: str, *, lasts: bool = True) -> str:
        permission = await self._conversation.permission(tool, arguments, why, lasts=lasts)
        return "accept" if permission.allowed else "decline"

    # -- what it reports

    def _notified(self, method: str, params: Message) -> None:
        """Take a notification."""
        if method.startswith(_OF_THREAD) and params.get("threadId") != self._thread:
            self._events.progress()  # a thread that Codex has started by itself
            return
        take = self._takers.get(method)
        if take is not None:
            take(params)
        elif method.endswith(_PROGRESS):
            self._events.progress()
        elif not method.startswith(_QUIET):
            self._events.other(method, params)

    def _started(self, params: Message) -> None:
        item = members(params.get("item"))
        if text_of(item.get("type")) not in _UNSEEN:
            self._begin_turn()  # in a resumed thread no raw event comes before
        self._items.started(item)

    def _completed(self, params: Message) -> None:
        item = members(params.get("item"))
        if item.get("type") in ("agentMessage", "reasoning"):
            self._begin_turn()
        if self._items.completed(item):
            self._bound_turns()

    def _raw(self, params: Message) -> None:
        item = members(params.get("item"))
        if item.get("type") in ("function_call", "reasoning"):
            self._begin_turn()
        self._items.raw(item)

    def _warned(self, params: Message) -> None:
        self._events.warn(text_of(params.get("message")) or text_of(params.get("summary")))

    def _begin_turn(self) -> None:
        if not self._in_turn:
            self._in_turn = True
            self._events.turn()

    def _spend(self, params: Message) -> None:
        """Take the totals of the thread; what was spent before this run is not this run's."""
        usage = members(params.get("tokenUsage"))
        total = _usage(members(usage.get("total")))
        if not self._turn:
            self._before = total  # Codex reports it for a thread that is resumed
        if params.get("turnId") != self._turn:
            return
        if self._before is None:
            self._before = _since(_usage(members(usage.get("last"))), total)
        spent = _since(self._before, total)
        if spent == self._spent:
            return  # the same call, reported again
        self._spent = spent
        self._begin_turn()
        self._in_turn = False
        counts = {"turns": self._events.usage.turns, "tool_calls": self._events.usage.tool_calls}
        self._events.spend(spent.model_copy(update=counts))

    def _bound_turns(self) -> None:
        """After the calls of the last turn another one would follow: there the run ends."""
        limit = self._task.agent.limits.max_turns
        if (self._events.usage.turns or 0) >= limit and self._reached is None:
            self._reached = f"It reached the limit of {limit} turns."
            self._interrupting = asyncio.ensure_future(self._interrupt())

    def _erred(self, params: Message) -> None:
        error = members(params.get("error"))
        words = text_of(error.get("message"))
        more = text_of(error.get("additionalDetails"))
        self._events.complain(f"{words} ({more})" if more else words)

    def _server_status(self, params: Message) -> None:
        name, why = text_of(params.get("name")), text_of(params.get("error"))
        ours = {*self._task.agent.mcp_servers, self._task.child.name}
        if params.get("status") != "starting":
            self._unready.discard(name)
            if not self._unready:
                self._servers_known.set()
        if params.get("status") == "failed" and name in ours:
            self._end(self._events.failed(f"The MCP server {name} did not start: {why}", "config"))
            self._interrupting = asyncio.ensure_future(self._interrupt())
        elif params.get("status") == "failed":
            self._events.warn(f"The MCP server {name} of the user's own configuration did not start: {why}")

    def _finish(self, turn: Message) -> None:
        """Take the end of the turn. A status of success alone does not count: there has to be a result."""
        status = turn.get("status")
        error = members(turn.get("error"))
        if self._reached is not None:
            self._end(
                self._events.failed(self._reached, "max_turns", "Raise `maxTurns`, or continue the run.")
            )
        elif status == "failed":
            message = f"Codex failed: {text_of(error.get('message'))}"
            self._end(self._events.failed(message, "model_error", _hint(error)))
        elif status != "completed":
            self._end(self._events.failed(f"The turn of Codex ended as {status!r}."))
        elif not self._events.text.strip():
            self._end(self._events.failed("Codex ended its turn without an answer."))
        else:
            self._end(Outcome(self._events.text))

    def _end(self, outcome: Outcome) -> None:
        if not self._ended.done():
            self._ended.set_result(outcome)


def _usage(counts: Mapping[str, Any]) -> Usage:
    """Return tokens as we count them: read from the cache is not counted as input again."""
    cached, read = count_of(counts.get("cachedInputTokens")), count_of(counts.get("inputTokens"))
    return Usage(
        input_tokens=None if read is None else max(0, read - (cached or 0)),
        cache_read_tokens=cached,
        cache_write_tokens=count_of(counts.get("cacheWriteInputTokens")),
        output_tokens=count_of(counts.get("outputTokens")),
        web_searches=None,
        web_fetches=None,
    )


def _since(before: Usage, total: Usage) -> Usage:
    """Return what has been added to the tokens of a thread; a missing count stays unknown."""
    added = {
        name: max(0, counted - (getattr(before, name) or 0))
        for name in TOKEN_COUNTS
        if (counted := getattr(total, name)) is not None
    }
    return UNKNOWN_USAGE.model_copy(update=added)


def _hint(error: Message) -> str:
    message = f"{error.get('codexErrorInfo')} {error.get('message')}"
    if re.search(r"unauthori[sz]ed|\b401\b", message, re.IGNORECASE):
        return "Log in once with `codex login`, or fix the key of its model provider."
    return LOOK_AT_LOG


def _server_entry(name: str, server: ServerDefinition) -> Message:
    """Return an MCP server of the agent as Codex's configuration has it."""
    entry: dict[str, Any] = {
        "startup_timeout_sec": server.timeout,
        "tool_timeout_sec": server.call_timeout_seconds,
        # the agent file names the server, so its tools are among the agent's
        "default_tools_approval_mode": "approve",
    }
    if server.enabled_tools is not None:
        entry["enabled_tools"] = server.enabled_tools
    if server.disabled_tools is not None:
        entry["disabled_tools"] = server.disabled_tools
    if server.type == "sse":
        raise RunRefused("config", f"Codex has no MCP servers of type sse: {name}.", "Offer it as `http`.")
    if server.type == "stdio":
        return {**entry, "command": server.command, "args": server.args, "env": server.env}
    return {**entry, "url": server.url, "http_headers": server.headers}


def _is_strict(schema: Any, level: int = 0) -> bool:
    """Whether the API takes a schema as it is: objects are closed, and every property is required.

    A schema with other keywords is not passed on: the API would refuse the request, and the run with it.
    """
    if not isinstance(schema, dict) or level > _MOST_LEVELS or not schema.keys() <= _KEYWORDS:
        return False
    kinds = schema.get("type")
    if level == 0 and kinds != "object":
        return False
    kinds = kinds if isinstance(kinds, list) else [kinds]  # with "null", for what may be missing
    if "object" in kinds or "properties" in schema:
        properties = schema.get("properties")
        if schema.get("additionalProperties") is not False or not isinstance(properties, dict):
            return False
        is_whole = set(schema.get("required", ())) == set(properties)
        if not is_whole or not all(_is_strict(part, level + 1) for part in properties.values()):
            return False
    return ("array" not in kinds and "items" not in schema) or _is_strict(schema.get("items"), level + 1)


# -- the items of a thread


def _mcp_tool(server: str, tool: str) -> str:
    """Return the name of a tool of an MCP server, as agent files have it."""
    return f"mcp__{server}__{tool}"


class _Items:
    """Reports items to `ProgramEvents`. `changes` are the files of each open patch."""

    def __init__(self, events: ProgramEvents) -> None:
        self.changes: dict[str, list[str]] = {}
        self._events = events
        self._begun: dict[str, str] = {}
        self._raw: dict[str, tuple[str, str]] = {}

    def started(self, item: Message) -> None:
        """Take the start of an item: a tool call begins."""
        kind, item_id = text_of(item.get("type")), name_of(item.get("id"))
        if kind in _UNSEEN or kind in ("agentMessage", "reasoning", "plan"):
            return
        tool, arguments = _call(kind, item)
        if kind == "fileChange" and len(self.changes) < _MOST_CHANGES:
            self.changes[item_id] = arguments["paths"]
        self._raw.pop(item_id, None)
        if len(self._begun) < MOST_OPEN_CALLS:
            self._begun[item_id] = tool
        self._events.call(item_id, tool, arguments)

    def completed(self, item: Message) -> bool:
        """Take the end of an item. Return whether it was a tool call."""
        kind, item_id = text_of(item.get("type")), name_of(item.get("id"))
        if kind == "agentMessage":
            self._events.say(text_of(item.get("text")))
        elif kind == "reasoning":
            parts = [*_texts(item.get("summary")), *_texts(item.get("content"))]
            self._events.think("\n".join(parts))
        elif kind not in _UNSEEN and kind != "plan":
            if item_id not in self._begun:
                self.started(item)
            tool = self._begun.pop(item_id, name_of(kind))
            self.changes.pop(item_id, None)
            code = item.get("exitCode")
            self._events.result(
                item_id,
                tool,
                _result(kind, item),
                is_error=text_of(item.get("status")) in _BAD or bool(item.get("error")),
                exit_code=code if isinstance(code, int) else None,
            )
            return True
        return False

    def raw(self, item: Message) -> None:
        """Take an item of the raw response: a call that never became an item is recorded with its answer."""
        call_id = name_of(item.get("call_id"))
        if item.get("type") == "function_call" and len(self._raw) < _MOST_RAW:
            self._raw[call_id] = name_of(item.get("name")), text_of(item.get("arguments"))[:_LONGEST_RAW]
        elif item.get("type") == "function_call_output":
            call = self._raw.pop(call_id, None)
            if call is None:
                return
            name, arguments = call
            self._events.call(call_id, name, _parsed(arguments))
            self._events.result(call_id, name, "\n".join(_texts(item.get("output"))), is_error=False)


def _call(kind: str, item: Message) -> tuple[str, Any]:
    """Return the tool of an item, and its arguments."""
    match kind:
        case "commandExecution":
            return SHELL, {"command": item.get("command"), "cwd": item.get("cwd")}
        case "fileChange":
            changes = item.get("changes")
            paths = [
                text_of(change.get("path"))[:_LONGEST_PATH] for change in items_of(changes)[:_MOST_PATHS]
            ]
            return PATCH, {"paths": paths, "changes": changes}
        case "mcpToolCall":
            tool = _mcp_tool(name_of(item.get("server")), name_of(item.get("tool")))
            return tool, item.get("arguments")
        case "webSearch":
            return "web_search", {"query": item.get("query")}
        case _:
            return name_of(kind), {
                key: value for key, value in item.items() if key not in ("type", "id", "status")
            }


def _result(kind: str, item: Message) -> str:
    match kind:
        case "commandExecution":
            return text_of(item.get("aggregatedOutput")) or text_of(item.get("status"))
        case "mcpToolCall":
            error = members(item.get("error"))
            if error:
                return text_of(error.get("message"))
            return "\n".join(_texts(members(item.get("result")).get("content")))
        case _:
            return text_of(item.get("status"))


def _texts(value: Any) -> list[str]:
    """Return the texts of a text, or of a list of texts and blocks."""
    parts = value if isinstance(value, list) else [value]
    texts = [text_of(part) or text_of(members(part).get("text")) for part in parts]
    return [text for text in texts if text]


def _parsed(arguments: str) -> Any:
    try:
        return storable(arguments)
    except (ValueError, RecursionError):
        return arguments
