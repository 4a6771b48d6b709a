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

from subagent_server.domain.errors import RunRefused
from subagent_server.domain.records import UNTOLD, Failure, Usage
from subagent_server.runners.outcome import Outcome
from subagent_server.runners.programs.codex_approvals import CodexApprovals
from subagent_server.runners.programs.codex_items import CodexItems
from subagent_server.runners.programs.codex_servers import server_entry
from subagent_server.runners.programs.dialect import Launch, ProgramTask, about_login
from subagent_server.runners.programs.events import ProgramEvents
from subagent_server.runners.programs.json_rpc import (
    JsonRpc,
    Message,
    ProgramGone,
    ProtocolError,
    count_of,
    members,
    text_of,
)
from subagent_server.runners.programs.strict_schema import is_strict
from subagent_server.toolkit.agent_process import AgentProcess
from subagent_server.toolkit.permission import Permissions

COMMAND = "codex"
_CHILD_CALL_SECONDS = 24 * 60 * 60
"""A question may wait for its answer this long; the run has limits of its own."""
_STARTUP_SECONDS = 60
_QUIET = (
    *("thread/", "turn/started", "account/", "serverRequest/", "remoteControl/", "rawResponse/", "hook/"),
    *("skills/", "app/", "mcpServer/"),
)
"""The beginnings of notifications that say nothing of the run."""
_OF_THREAD = ("item/", "turn/", "thread/", "rawResponseItem/", "error")
_PROGRESS = ("/delta", "/outputDelta", "Delta", "/progress", "/patchUpdated")
_WARNINGS = frozenset({"warning", "configWarning", "guardianWarning", "deprecationNotice"})


class CodexDialect:
    """Implements `Dialect` for Codex."""

    def __init__(self, task: ProgramTask, events: ProgramEvents, permissions: Permissions) -> None:
        self._task = task
        self._events = events
        self._items = CodexItems(events)
        self._approvals = CodexApprovals(self._items, events, permissions)
        self._rpc: JsonRpc | None = None
        self._thread = ""
        self._turn = ""
        self._ended: asyncio.Future[Outcome] | None = None
        self._before: Usage | None = None
        self._spent = UNTOLD
        events.counts("turns", "tool_calls")
        self._in_turn = False
        self._reached: str | None = None
        self._asking = ""
        self._unready = {*task.agent.mcp_servers, task.child.name}
        self._servers_known = asyncio.Event()
        self._takers: dict[str, Callable[[Message], None]] = {
            "item/started": lambda params: self._items.started(members(params.get("item"))),
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
        return Launch([self._task.agent.command or COMMAND, *words, "app-server"])

    async def converse(self, process: AgentProcess) -> Outcome:
        """Open the thread, let it work through one turn, and return how that ended."""
        self._ended = asyncio.get_running_loop().create_future()
        self._rpc = JsonRpc(process, self._approvals.answer, self._heard, self._events.complain)
        listening = asyncio.create_task(self._rpc.listen())
        try:
            await self._open()
            waited: list[asyncio.Future[Any]] = [self._ended, listening]
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if self._ended.done():
                return self._ended.result()
            await listening
            return self._gone(await process.exited())
        except ProgramGone:
            return self._gone(await process.exited())
        except ProtocolError as error:
            return self._failed(f"Codex refused {self._asking}: {error}.")
        finally:
            listening.cancel()

    def interrupt(self, process: AgentProcess) -> None:
        """Interrupt its turn, or the program if no turn has begun."""
        if self._rpc is None or not self._turn:
            process.interrupt()
        else:
            self._interrupting = asyncio.ensure_future(self._interrupt())

    async def _interrupt(self) -> None:
        assert self._rpc is not None
        with suppress(ProtocolError, ProgramGone):  # it ended by itself, or is ended by a signal soon
            await self._rpc.call("turn/interrupt", threadId=self._thread, turnId=self._turn)

    # -- the way to the turn

    async def _call(self, method: str, **params: Any) -> Message:
        assert self._rpc is not None
        self._asking = method
        return await self._rpc.call(method, **params)

    async def _open(self) -> None:
        assert self._rpc is not None
        client = {"name": "subagent", "version": "1"}
        # the raw events tell of the calls that its sandbox refuses
        hello = await self._call("initialize", clientInfo=client, capabilities={"experimentalApi": True})
        await self._rpc.notify("initialized")
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
            **({"outputSchema": schema} if schema is not None and is_strict(schema) else {}),
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
            "cwd": str(self._task.cwd),
            # a model may not be the judge of what a model asks for
            "approvalsReviewer": "user",
            "approvalPolicy": "never" if self._task.boxed else "on-request",
            "sandbox": "danger-full-access" if self._task.boxed else "workspace-write",
            "developerInstructions": self._task.system,
            "config": self._config(),
            **({"model": agent.model} if agent.model not in (None, "inherit", "default") else {}),
        }
        if self._task.resumes is not None:
            return await self._call("thread/resume", threadId=self._task.resumes, excludeTurns=True, **params)
        return await self._call("thread/start", experimentalRawEvents=True, **params)

    def _config(self) -> Message:
        agent, child = self._task.agent, self._task.child
        servers = {name: server_entry(name, server) for name, server in agent.mcp_servers.items()}
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
        """Codex's sandbox does not start from below the temporary directory, and no command tells why."""
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
        except ProtocolError:
            return  # an older version: the first request of its model will tell
        if account.get("requiresOpenaiAuth") is True and not account.get("account"):
            hint = about_login(self._task.agent, "Run `codex login` once, then start it again.")
            raise RunRefused("config", "Codex is not logged in.", hint)

    # -- what it tells

    def _heard(self, method: str, params: Message) -> None:
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
        if params.get("turnId") != self._turn and self._turn:
            return
        usage = members(params.get("tokenUsage"))
        total = _usage(members(usage.get("total")))
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
            self._end(self._failed(f"The MCP server {name} did not start: {why}", "config"))
            self._interrupting = asyncio.ensure_future(self._interrupt())
        elif params.get("status") == "failed":
            self._events.warn(f"The MCP server {name} of the user's own configuration did not start: {why}")

    def _finish(self, turn: Message) -> None:
        """Take the end of the turn. A status of success alone does not count: there has to be a result."""
        status = turn.get("status")
        error = members(turn.get("error"))
        if self._reached is not None:
            self._end(self._failed(self._reached, "max_turns", "Raise `maxTurns`, or continue the run."))
        elif status == "failed":
            self._end(
                self._failed(f"Codex failed: {text_of(error.get('message'))}", "model_error", _hint(error))
            )
        elif status != "completed":
            self._end(self._failed(f"The turn of Codex ended as {status!r}."))
        elif not self._events.text.strip():
            self._end(self._failed("Codex ended its turn without a word."))
        else:
            self._end(Outcome(self._events.text))

    def _end(self, outcome: Outcome) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(outcome)

    def _gone(self, code: int | None) -> Outcome:
        return self._failed(f"Codex ended in the middle of its work ({_how(code)}).")

    def _failed(self, message: str, code: str = "agent_error", hint: str | None = None) -> Outcome:
        hint = hint or "Look at run.log, which has all that it said."
        return Outcome(self._events.text, failure=Failure(code=code, message=message, hint=hint))


def _usage(counts: Mapping[str, Any]) -> Usage:
    """Return tokens as we count them: read from the cache is not counted as input again."""
    cached, given = count_of(counts.get("cachedInputTokens")), count_of(counts.get("inputTokens"))
    return Usage(
        input_tokens=None if given is None else max(0, given - (cached or 0)),
        cache_read_tokens=cached,
        cache_write_tokens=count_of(counts.get("cacheWriteInputTokens")),
        output_tokens=count_of(counts.get("outputTokens")),
        web_searches=None,
        web_fetches=None,
    )


def _since(before: Usage, total: Usage) -> Usage:
    """Return what has been added to the tokens of a thread; a missing count stays unknown."""
    added = {
        name: max(0, told - (getattr(before, name) or 0))
        for name in ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
        if (told := getattr(total, name)) is not None
    }
    return UNTOLD.model_copy(update=added)


def _hint(error: Message) -> str | None:
    said = f"{error.get('codexErrorInfo')} {error.get('message')}"
    if re.search(r"unauthori[sz]ed|\b401\b", said, re.IGNORECASE):
        return "Log in once with `codex login`, or mend the key of its model provider."
    return None


def _how(code: int | None) -> str:
    if code is None:
        return "its output ended"
    return f"signal {-code}" if code < 0 else f"exit code {code}"
