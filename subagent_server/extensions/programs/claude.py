"""Claude Code, by its stream of JSON lines, with its permission prompt on the same pipes.

The events and flags were tried with version 2.1.332. The control protocol (`control_request`) is what its SDK
speaks and `--help` does not name; `tests/clients/test_claude_runner.py` pins it.
"""

import asyncio
import json
import re
import uuid
from collections.abc import Collection, Iterator, Mapping
from decimal import Decimal
from typing import Any

from subagent_server.extensions.programs.program import (
    LOOK_AT_LOG,
    MOST_OPEN_CALLS,
    NO_MENTIONS,
    Launch,
    ProgramEvents,
    ProgramTask,
    SessionLost,
    about_login,
    count_of,
    items_of,
    members,
    name_of,
    parsed,
    text_of,
)
from subagent_server.extensions.programs.program_checks import KNOWN_PROGRAMS, program_of
from subagent_server.loop.runner import EMPTY_REPLY, Outcome
from subagent_server.run.agent_definition import AgentDefinition, ServerDefinition
from subagent_server.run.errors import RunRefused, SubagentError
from subagent_server.run.files import in_memory
from subagent_server.run.records import UNKNOWN_USAGE, Failure
from subagent_server.toolbox.agent_process import AgentProcess
from subagent_server.toolbox.run_context import Permissions, RunOver

_SETTINGS = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    # its own agents work in the background by default (seen in 2.1.332): its run would end before them
    "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
    # it would follow what it has learnt of the project in sessions of the person (seen in 2.1.332)
    "CLAUDE_CODE_DISABLE_AUTO_MEMORY": "1",
    **NO_MENTIONS,
}
_OF_API = ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL")
"""The defaults of `apiKeyEnv` and `baseUrl` in an agent file."""
_UNAVAILABLE = (
    *("Workflow", "Monitor", "ScheduleWakeup", "CronCreate"),
    *("EnterWorktree", "EnterPlanMode", "ExitPlanMode", "AskUserQuestion"),
)
"""What works on after its answer, which ends the run; a worktree in the `.claude` of the project; questions
to a person at a terminal that is not there: `ask_parent` replaces them."""
_MOST_OPEN = 32
"""Requests that wait for their answers, or for a program that reads them; then nothing more is read."""
_LIMITS = {
    "error_max_turns": ("max_turns", "Claude Code used all of its turns.", "Raise `maxTurns`."),
    "error_max_budget_usd": ("budget", "Claude Code used all of its budget.", "Raise `budgetUsd`."),
    "error_max_structured_output_retries": (
        *("invalid_output", "Claude Code gave no output that fits `outputSchema`."),
        "Say in its prompt which form the result has.",
    ),
}
_LOGIN = "Start `claude` once and log in, or set ANTHROPIC_API_KEY."
_ABOUT_LOGIN = re.compile(r"log(ged)? ?in\b|API key|authenticat|\b401\b", re.IGNORECASE)


class ClaudeDialect:
    """Implements `Dialect` for Claude Code."""

    def __init__(self, task: ProgramTask, events: ProgramEvents, permissions: Permissions) -> None:
        self._task = task
        self._events = events
        self._permissions = permissions
        self._session = str(uuid.uuid4())
        self._is_named = False
        self._tools: dict[str, str] = {}
        self._asked: set[str] = set()
        self._answers: set[asyncio.Task[None]] = set()
        self._message = ""
        self._usage = UNKNOWN_USAGE
        events.counts("turns", "tool_calls")

    # -- the start

    def launch(self) -> Launch:
        """Return its command line. Values that may hold a secret go by files in memory."""
        agent = self._task.agent
        files = [in_memory(self._servers()), in_memory(self._task.system.encode("utf-8", "replace"))]
        servers, system = (f"/proc/self/fd/{file}" for file in files)
        words = [program_of(agent) or "", "-p", "--verbose", "--strict-mcp-config", "--setting-sources", ""]
        words += ["--input-format", "stream-json", "--output-format", "stream-json"]
        words += ["--permission-prompt-tool", "stdio", "--mcp-config", servers]
        words += [
            "--system-prompt-file" if agent.system_prompt.strip() else "--append-system-prompt-file",
            system,
        ]
        words += ["--session-id", self._session]  # a fork leaves the old one to other continuations
        words += ["--resume", self._task.resumes, "--fork-session"] if self._task.resumes else []
        words += ["--max-turns", str(agent.limits.max_turns)]
        words += ["--model", agent.model] if agent.model not in (None, "inherit", "default") else []
        words += ["--effort", agent.effort] if agent.effort else []
        budget = agent.limits.budget_usd
        words += ["--max-budget-usd", f"{budget:f}"] if budget is not None else []
        words += ["--json-schema", json.dumps(agent.output_schema)] if agent.output_schema is not None else []
        words += ["--permission-mode", agent.permission_mode] if agent.permission_mode else []
        # it still writes there unasked, what the next session of the person would follow
        home = self._task.environment.get("CLAUDE_CONFIG_DIR")
        memory = f"{f'/{home}' if home else '~/.claude'}/projects/*/memory/**"
        settings: dict[str, object] = {
            "permissions": {"ask": [*agent.ask, f"Read({memory})", f"Edit({memory})"]}
        }
        settings |= {"hooks": agent.hooks} if agent.hooks else {}
        files.append(in_memory(json.dumps(settings).encode()))
        words += ["--settings", f"/proc/self/fd/{files[-1]}"]
        words += ["--allowedTools", *self._allowed()]
        words += ["--disallowedTools", *self._disallowed()]
        return Launch(words, self._variables(), files)

    def _allowed(self) -> Iterator[str]:
        agent = self._task.agent
        yield f"mcp__{self._task.child.name}"
        if agent.permission_mode not in (None, "bypassPermissions"):
            yield from (_name(tool) for tool in agent.tools or [] if "(" in tool and tool not in agent.ask)
            return  # the mode decides what happens without a question
        if agent.tools is None:
            yield from (f"mcp__{name}" for name in agent.mcp_servers)
        yield from (_name(tool) for tool in agent.tools or [] if tool not in agent.ask)

    def _disallowed(self) -> Iterator[str]:
        agent = self._task.agent
        yield from _UNAVAILABLE
        yield from map(_name, agent.disallowed_tools)
        for name, server in agent.mcp_servers.items():
            yield from (f"mcp__{name}__{tool}" for tool in server.disabled_tools or [])

    def _variables(self) -> Mapping[str, str]:
        agent = self._task.agent
        variables = dict(_SETTINGS)
        if agent.base_url:
            variables["ANTHROPIC_BASE_URL"] = agent.base_url
        if agent.max_tokens:
            variables["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] = str(agent.max_tokens)
        if self._task.boxed:  # else it inherits them
            inherited = {name: self._task.environment.get(name) for name in _OF_API}
            variables = {name: value for name, value in inherited.items() if value} | variables
        if agent.api_key_env != "ANTHROPIC_API_KEY":
            key = self._task.environment.get(agent.api_key_env, "").strip()
            if not key:
                raise RunRefused(
                    "config", f"{agent.api_key_env} is not set.", "Set it where runs are started."
                )
            variables["ANTHROPIC_API_KEY"] = key
        return variables

    def _servers(self) -> bytes:
        child = self._task.child
        servers = self._task.agent.mcp_servers
        if child.name in servers:
            raise RunRefused(
                "config", f"mcpServers.{child.name}: this name is taken.", "Choose another name."
            )
        own = {child.name: {"type": "stdio", "command": child.command, "args": list(child.args)}}
        theirs = {name: _server(name, server) for name, server in servers.items()}
        return json.dumps({"mcpServers": {**own, **theirs}}).encode()

    # -- the conversation

    async def converse(self, process: AgentProcess) -> Outcome:
        """Send it the task, answer its requests, and read its events until its result."""
        self._refused: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        talking = asyncio.create_task(self._talk(process))
        try:
            await asyncio.wait([talking, self._refused], return_when=asyncio.FIRST_COMPLETED)
            return (talking if talking.done() else self._refused).result()
        finally:
            for task in (talking, *self._answers):
                task.cancel()

    async def _talk(self, process: AgentProcess) -> Outcome:
        # text that begins with a slash would be a command of the program: /cost, /clear, /model
        content = [
            {**block, "text": f"\n{block['text']}"} if block["type"] == "text" else block
            for block in self._task.content
        ]
        await _send(process, {"type": "user", "message": {"role": "user", "content": content}})
        async for line in process.lines():
            event = parsed(line, self._events.complain)
            if event is None:
                continue
            if event.get("type") == "result":
                return self._ended(event)
            await self._take(event, process)
        return await self._broken_off(process)

    def interrupt(self, process: AgentProcess) -> None:
        """Send it SIGINT, at which it ends its turn and reports the cost."""
        process.interrupt()

    async def _take(self, event: dict[str, Any], process: AgentProcess) -> None:
        kind = text_of(event.get("type"))
        if kind == "control_request":
            await self._requested(event, process)
        elif kind == "assistant":
            await self._session_is_kept()
            self._assistant(members(event.get("message")), is_own=event.get("parent_tool_use_id") is None)
        elif kind == "user":
            self._results(members(event.get("message")))
        elif kind == "system":
            self._system(event)
        else:
            self._events.other(kind, event)

    async def _session_is_kept(self) -> None:
        """Write the session into the state of the run, once the program must have begun its record of it."""
        if not self._is_named:
            self._is_named = True
            await self._events.session(self._session)

    def _system(self, event: dict[str, Any]) -> None:
        subtype = text_of(event.get("subtype"))
        if subtype == "api_retry":
            attempt, status = event.get("attempt"), event.get("error_status")
            self._events.complain(f"The API failed ({status}); attempt {attempt} of Claude Code follows.")
        elif subtype.startswith("task_"):  # of its own agents, whose calls are in the journal themselves
            self._events.progress()
        elif subtype == "init":
            self._events.progress()
            for server in items_of(event.get("mcp_servers")):
                if text_of(server.get("status")) == "failed":
                    name = text_of(server.get("name"))[:200]
                    self._events.warn(f"The MCP server {name} could not be started.")
        elif subtype == "permission_denied":
            self._events.warn(f"Claude Code denied {text_of(event.get('tool_name'))[:200]} by its own rules.")
        else:
            self._events.other(f"system/{subtype}", event)

    def _assistant(self, message: dict[str, Any], *, is_own: bool) -> None:
        if is_own and (message_id := text_of(message.get("id"))) != self._message:
            self._message = message_id
            self._events.turn()
            self._count(members(message.get("usage")))
        for block in items_of(message.get("content")):
            match text_of(block.get("type")):
                case "text" if is_own:
                    self._events.say(text_of(block.get("text")))
                case "thinking":
                    self._events.think(text_of(block.get("thinking")))
                case "tool_use":
                    call_id, name = name_of(block.get("id")), name_of(block.get("name"))
                    if len(self._tools) < MOST_OPEN_CALLS:
                        self._tools[call_id] = name
                    self._events.call(call_id, name, block.get("input"))
                case _:
                    pass

    def _results(self, message: dict[str, Any]) -> None:
        for block in items_of(message.get("content")):
            if text_of(block.get("type")) == "tool_result":
                call_id = name_of(block.get("tool_use_id"))
                text = _text_of_blocks(block.get("content"))
                tool = self._tools.pop(call_id, "")
                self._events.result(call_id, tool, text, is_error=block.get("is_error") is True)

    def _count(self, usage: dict[str, Any]) -> None:
        """Add the tokens of one message; the end of the run names the totals."""
        added = {name: count + (getattr(self._usage, name) or 0) for name, count in _tokens(usage).items()}
        self._usage = self._usage.model_copy(update=added)
        self._events.spend(self._events.usage.model_copy(update=added))

    # -- permissions

    async def _requested(self, event: dict[str, Any], process: AgentProcess) -> None:
        request_id, request = text_of(event.get("request_id")), members(event.get("request"))
        if text_of(request.get("subtype")) != "can_use_tool":
            answer = {"subtype": "error", "request_id": request_id, "error": "This is not supported."}
            await _send(process, {"type": "control_response", "response": answer})
            return
        self._events.progress()
        if len(self._answers) >= _MOST_OPEN:
            await asyncio.wait(self._answers, return_when=asyncio.FIRST_COMPLETED)
        answering = asyncio.create_task(self._answer(request_id, request, process))
        self._answers.add(answering)
        answering.add_done_callback(self._answers.discard)

    async def _answer(self, request_id: str, request: dict[str, Any], process: AgentProcess) -> None:
        """Ask whether a tool may be used, and answer the request."""
        tool, arguments = text_of(request.get("tool_name")), members(request.get("input"))
        try:
            permission = await self._permissions.ask(tool, arguments, text_of(request.get("decision_reason")))
        except RunOver:
            return  # it is interrupted next, and then reports what it has cost
        except SubagentError as error:
            if not self._refused.done():
                self._refused.set_exception(error)
            return
        self._asked.add(name_of(request.get("tool_use_id")))
        decision: dict[str, Any] = {"behavior": "deny", "message": permission.reason}
        if permission.allowed:
            decision = {"behavior": "allow", "updatedInput": arguments}
        answer = {"subtype": "success", "request_id": request_id, "response": decision}
        await _send(process, {"type": "control_response", "response": answer})

    # -- the end

    def _ended(self, event: dict[str, Any]) -> Outcome:
        if self._task.resumes is not None and not self._is_named:
            for error in _errors(event):
                if error.startswith("No conversation found"):
                    self._task = self._task.without_session()
                    raise SessionLost(error)
        before, totals = self._events.usage, _totals(event, self._task.spent)
        # at the end of its budget it reports 0 for tokens that it has reported before
        known = {name: count for name, count in totals.items() if count or not getattr(before, name)}
        self._events.spend(before.model_copy(update=known))
        return judged_end(event, self._task.agent, self._asked, self._events)

    async def _broken_off(self, process: AgentProcess) -> Outcome:
        install = KNOWN_PROGRAMS["claude"].install
        hint = f"If an option is unknown to it, it is too old: `{install}`. Else `continue` resumes it."
        return self._events.broken_off(
            "Claude Code", await process.exited(), " before it gave a result", hint
        )


def _tokens(usage: dict[str, Any]) -> dict[str, int]:
    """Return the counts of tokens in the event."""
    counts = {
        "input_tokens": count_of(usage.get("input_tokens")),
        "output_tokens": count_of(usage.get("output_tokens")),
        "cache_read_tokens": count_of(usage.get("cache_read_input_tokens")),
        "cache_write_tokens": count_of(usage.get("cache_creation_input_tokens")),
    }
    return {name: count for name, count in counts.items() if count is not None}


_OF_MODELS = {
    "input_tokens": "inputTokens",
    "output_tokens": "outputTokens",
    "cache_read_tokens": "cacheReadInputTokens",
    "cache_write_tokens": "cacheCreationInputTokens",
}
"""The tokens of each model, with those of Claude Code's own agents, which `usage` leaves out."""


def _totals(event: dict[str, Any], spent: Decimal | None) -> dict[str, Any]:
    """Return the usage of the run. The cost in the event is that of the whole session, `spent` before."""
    totals: dict[str, Any] = dict(_tokens(members(event.get("usage"))))
    models = members(event.get("model_usage_since_last_result")).values()
    for name, key in _OF_MODELS.items():
        counts = [count_of(members(each).get(key)) for each in models]
        if known := [count for count in counts if count is not None]:
            totals[name] = sum(known)
    cost = event.get("total_cost_usd")
    if spent is not None and isinstance(cost, int | float) and spent <= cost < 1e9:
        totals["cost_usd"] = Decimal(str(round(cost, 6))) - spent
    return totals


def _server(name: str, server: ServerDefinition) -> dict[str, Any]:
    """Return a server as its configuration has it. Raises RunRefused for what it cannot keep."""
    if server.enabled_tools:
        raise RunRefused(
            "config",
            f"mcpServers.{name}.enabledTools cannot be kept by Claude Code.",
            "Use `disabledTools`, or leave the key out.",
        )
    if server.type == "stdio":
        entry: dict[str, Any] = {"command": server.command, "args": server.args, "env": server.env}
    else:
        entry = {"url": server.url, "headers": server.headers}
    return {"type": server.type, "timeout": int(server.call_timeout_seconds * 1000), **entry}


def _text_of_blocks(content: Any) -> str:
    """Return the text of the result of a tool; what is not text is named."""
    if isinstance(content, str):
        return content
    return "\n".join(
        text_of(block.get("text")) or f"[{text_of(block.get('type'))}]" for block in items_of(content)
    )


def _name(tool: str) -> str:
    """Return the name of a tool as an argument: none can be taken for an option."""
    return tool.lstrip("- ")


async def _send(process: AgentProcess, message: dict[str, Any]) -> None:
    await process.write(json.dumps(message).encode("utf-8", "replace") + b"\n")


# -- how it ended


def judged_end(
    event: dict[str, Any], agent: AgentDefinition, asked: Collection[str], events: ProgramEvents
) -> Outcome:
    """Return the outcome by the event `result`. `asked` are the calls whose permission was asked for here."""
    text = text_of(event.get("result")) or events.text
    if (failure := _failure(event, text, agent)) is not None:
        return Outcome(events.text or text, failure=failure)
    events.text = text
    denied = {
        text_of(denial.get("tool_name"))[:200]
        for denial in items_of(event.get("permission_denials"))
        if name_of(denial.get("tool_use_id")) not in asked
    }
    # a refusal by the agent file itself, in whole or in part, is expected
    forbidden = {name.partition("(")[0].strip() for name in agent.disallowed_tools}
    if unasked := sorted(denied - forbidden):
        message = f"Claude Code was denied {', '.join(unasked)}, and nobody was asked."
        hint = (
            "Allow it by `tools`, forbid it by `disallowedTools`, or word the task so that it is not needed."
        )
        return events.failed(message, hint=hint)
    if agent.output_schema is not None:
        output = event.get("structured_output")
        if output is None:
            code, message, hint = _LIMITS["error_max_structured_output_retries"]
            return events.failed(message, code, hint)
        return Outcome(text, output=output, has_output=True)
    if not text.strip():
        return events.failed("It ended without an answer.")
    if not text_of(event.get("result")):
        events.note(EMPTY_REPLY)
    return Outcome(text)


def _errors(event: dict[str, Any]) -> list[str]:
    found = event.get("errors")
    return [error for error in found if isinstance(error, str)] if isinstance(found, list) else []


def _failure(event: dict[str, Any], text: str, agent: AgentDefinition) -> Failure | None:
    subtype, reason = text_of(event.get("subtype")), text_of(event.get("terminal_reason"))
    if subtype in _LIMITS:
        code, message, hint = _LIMITS[subtype]
        return Failure(code=code, message=message, hint=hint)
    if subtype == "success" and event.get("is_error") is False and reason in ("", "completed"):
        return None
    why = "; ".join(_errors(event)) or text or subtype or "no reason given"
    of_model = reason == "api_error" or "API Error" in why
    return Failure(
        code="model_error" if of_model else "agent_error",
        message=f"Claude Code ended with an error ({reason or subtype}): {why}",
        hint=about_login(agent, _LOGIN) if _ABOUT_LOGIN.search(why) else LOOK_AT_LOG,
    )
