"""The runner of every program: its task, its events, its process and the watch over it, and its dialect.

A program may send anything, as often and as long as it likes. The journal bounds each text; `ProgramEvents`
bounds all texts together. A text that is not recorded still counts for the result.
"""

import asyncio
import json
import re
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol

from subagent_server.loop.runner import Outcome
from subagent_server.run.agent_definition import AgentDefinition
from subagent_server.run.commands import misfit
from subagent_server.run.errors import RunRefused
from subagent_server.run.files import Directory
from subagent_server.run.records import UNKNOWN_USAGE, Failure, Usage, storable
from subagent_server.toolbox.agent_process import AgentProcess, how_it_ended
from subagent_server.toolbox.run_context import RunContext

MOST_CHARACTERS = 32 << 20
"""Of all events of one run; texts beyond it are not written."""
MOST_EVENTS = 100_000
MOST_OPEN_CALLS = 10_000
"""Tool calls whose ends are waited for; ids and names are cut, so their sum has a bound."""
_LONGEST_NAME = 200
_MOST_ITEMS = 10_000
_LONGEST_WORDS = 600
_SESSION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,199}")
_LOOK_SECONDS = 2.0
_ANSWER_SECONDS = 0.5
"""A program that has ended its own run, by `update_status`, still reads the answer to that."""
_INTERRUPT_SECONDS = 3.0
"""How long an interrupted program may take to end its turn and to report its cost."""
_EXIT_SECONDS = 2.0
_GRACE_SECONDS = 2.0


# -- the fields of a program's messages, which may have any type anywhere

Message = dict[str, Any]


def members(value: Any) -> Message:
    """Return a JSON object as it is, and an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def items_of(value: Any) -> list[Message]:
    """Return the objects of a list, and none for anything else."""
    return [item for item in value[:_MOST_ITEMS] if isinstance(item, dict)] if isinstance(value, list) else []


def text_of(value: Any) -> str:
    """Return a text as it is, and an empty one for anything else."""
    return value if isinstance(value, str) else ""


def name_of(value: Any) -> str:
    """Return a name or an id, its beginning if it is long, and an empty one for anything else."""
    return text_of(value)[:_LONGEST_NAME]


def count_of(value: Any) -> int | None:
    """Return a count as it is, and None for anything else."""
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53
    return value if is_count else None


def parsed(line: bytes, noise: Callable[[str], None]) -> Message | None:
    """Return a line of JSON lines as an object; a line that is not an object goes to `noise`."""
    with suppress(ValueError, RecursionError):
        message = storable(line)
        if isinstance(message, dict):
            return message
    if line.strip():
        noise(line[:2_000].decode("utf-8", "replace"))
    return None


# -- its task and its dialect

MCP_CONFIG = "{mcpConfig}"
"""The field in `args` for the file of `ProgramTask.write_mcp_config`."""
NO_MENTIONS = {"CLAUDE_CODE_DISABLE_FILE_MENTIONS": "1"}
"""Claude Code, and its adapter, would read each file that a task names by `@PATH`, without a question and
whatever tools its agent has (seen in 2.1.332)."""


@dataclass(frozen=True)
class ChildServer:
    """The command of the MCP server by which a program asks its parent and reports. It needs no variable."""

    name: str
    command: str
    args: Sequence[str]


@dataclass(frozen=True)
class ProgramTask:
    """The input of a program: its task, its agent, and the directories that it may use.

    `prompt` is the task in words, with its inputs; `content` is the same in blocks of the Messages API.
    `retold` is `prompt` behind the whole conversation so far, for a program that cannot resume its own.
    `system` is the agent's prompt and `preamble` is for every run alike. `state` is a directory of the run
    that the program may write. `environment` is the run's. `resumes` is the conversation to continue,
    and `spent` its cost so far, None if that is not known. `kept` has the path of the program's own state
    directory if it works in a sandbox.
    """

    agent: AgentDefinition
    run_id: str
    prompt: str
    retold: str
    content: Sequence[dict[str, Any]]
    preamble: str
    cwd: Path
    child: ChildServer
    state: Directory
    environment: Mapping[str, str]
    resumes: str | None = None
    spent: Decimal | None = Decimal(0)
    kept: Directory | None = None

    @property
    def boxed(self) -> bool:
        """Whether the program works in a sandbox."""
        return self.kept is not None

    def without_session(self) -> "ProgramTask":
        """Return the same task for a program that no longer has the session to resume."""
        images = [block for block in self.content if block["type"] != "text"]
        content = [*images, {"type": "text", "text": self.retold}]
        return replace(self, prompt=self.retold, content=content, resumes=None, spent=Decimal(0))

    @property
    def system(self) -> str:
        """The agent's prompt, and the preamble behind it."""
        return "\n\n".join(text for text in (self.agent.system_prompt.strip(), self.preamble) if text)

    def write_mcp_config(self) -> Path:
        """Write the file that names the child's server as MCP clients have it, and return its path."""
        server = {"type": "stdio", "command": self.child.command, "args": list(self.child.args)}
        return self.write("mcp.json", json.dumps({"mcpServers": {self.child.name: server}}))

    def write(self, name: str, text: str) -> Path:
        """Write a file that the program reads, and return its path."""
        entry = self.state.entry(name)
        entry.write(text.encode())
        return entry.path


@dataclass(frozen=True)
class Launch:
    """The command line of a program, with the variables to add to its environment.

    The program inherits `descriptors`, which are closed here once it has started.
    """

    argv: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    descriptors: Sequence[int] = ()


class Dialect(Protocol):
    """One kind of program. Made once for each run."""

    def launch(self) -> Launch:
        """Return how the program is started. Blocking, for some milliseconds.

        Raises:
            RunRefused: `config`, if it cannot be started as the agent file asks.
        """

    async def converse(self, process: AgentProcess) -> Outcome:
        """Speak with the program until it is known how the run ended.

        It continues when the run is ended from outside, until `interrupt` has had its effect or the output of
        the program ends. The structured output of the outcome is checked by the caller.

        Raises:
            RunRefused: the run cannot continue, for the reason its code names.
            SessionLost: the program has ended without work; started once more, it gets the task as text.
        """

    def interrupt(self, process: AgentProcess) -> None:
        """Ask the program to end its turn: in its protocol, or by SIGINT."""


class SessionLost(Exception):
    """A program no longer has the session to resume; its message is the text."""


LOOK_AT_LOG = "Look at run.log, which has all that it said."
_KILLED = "Something outside of the run has killed it, or memory ran out: `continue` resumes it."


def about_login(agent: AgentDefinition, hint: str) -> str:
    """Return a hint about a login, with what a program in a sandbox needs besides."""
    if agent.sandbox != "bwrap":
        return hint
    return (
        f"{hint} In its sandbox it has the keys and logins that `env` and `sandboxRead` name, and no others."
    )


# -- its events


def is_session_id(name: str) -> bool:
    """Whether a name may be passed to a program as that of a conversation: it is not like an option."""
    return _SESSION_ID.fullmatch(name) is not None


class ProgramEvents:
    """Records what a program does. `text` is its last text, `usage` is what it has reported so far."""

    def __init__(self, run: RunContext, last_errors: Callable[[], str]) -> None:
        """`last_errors` returns the end of what the program has written to stderr."""
        self.text = ""
        self.usage = UNKNOWN_USAGE
        self.noted: list[str] = []
        """What the view of the ended run has too."""
        self._run = run
        self._last_errors = last_errors
        self._last_progress = time.monotonic()
        self._words = ""
        self._characters = 0
        self._events = 0
        self._is_full = False
        self._open: set[str] = set()

    # -- progress

    @property
    def idle_seconds(self) -> float:
        """How long ago the program has got on."""
        return time.monotonic() - self._last_progress

    def progress(self) -> None:
        """Note that the program makes progress, or that it waits for others."""
        self._last_progress = time.monotonic()

    @property
    def uses_tools(self) -> bool:
        """Whether a tool works whose end has not come, such as a long command without output."""
        return bool(self._open)

    @property
    def last_words(self) -> str:
        """The last output of the program without progress, for people; empty if there is none."""
        return self._words or self._last_errors()

    def broken_off(self, title: str, code: int | None, when: str = "", hint: str = LOOK_AT_LOG) -> Outcome:
        """Return the outcome of a program that ended too early, with this code (negative: the signal)."""
        words = f" Its last words: {self.last_words}" if self.last_words else ""
        hint = _KILLED if code == -signal.SIGKILL else hint
        return self.failed(f"{title} {how_it_ended(code)}{when}.{words}", hint=hint)

    async def session(self, session_id: str) -> None:
        """Keep the name of the program's own record of the conversation. Raises SubagentError."""
        if is_session_id(session_id):
            await asyncio.to_thread(self._run.session_opened, session_id)

    def session_lost(self, error: Exception) -> None:
        """Warn that the program no longer has the session to resume, and begins another."""
        self.warn(f"It has lost its session, and gets the conversation as text: {error}")

    def complain(self, words: str) -> None:
        """Record a trouble that the program reports, such as a retry. It is no progress."""
        self._words = words.strip()[-_LONGEST_WORDS:]
        self._record("warning", message=words)

    def failed(self, message: str, code: str = "agent_error", hint: str = LOOK_AT_LOG) -> Outcome:
        """Return the outcome of a program that has failed: its last text is kept."""
        return Outcome(self.text, failure=Failure(code=code, message=message, hint=hint))

    # -- what it does

    def counts(self, *names: str) -> None:
        """Count these numbers of the usage from 0: the program reports each turn, or each call."""
        self.usage = self.usage.model_copy(update=dict.fromkeys(names, 0))

    def turn(self) -> None:
        """Record that it calls its model once more."""
        turns = (self.usage.turns or 0) + 1
        self._did("turn", turn=turns)
        self.usage = self.usage.model_copy(update={"turns": turns})

    def say(self, text: str) -> None:
        """Record a whole text of it."""
        if text.strip():
            self.text = text
            self._did("text", text=text)

    def think(self, text: str) -> None:
        """Record a thought."""
        if text.strip():
            self._did("thought", text=text)

    def call(self, call_id: str, tool: str, arguments: Any) -> None:
        """Record that a tool begins."""
        self._did("tool_call", toolCallId=call_id, toolName=tool, arguments=arguments)
        if len(self._open) < MOST_OPEN_CALLS:
            self._open.add(call_id)
        self.usage = self.usage.model_copy(update={"tool_calls": (self.usage.tool_calls or 0) + 1})

    def result(
        self, call_id: str, tool: str, text: str, *, is_error: bool = False, exit_code: int | None = None
    ) -> None:
        """Record that a tool has ended."""
        self._open.discard(call_id)
        code = {} if exit_code is None else {"exitCode": exit_code}
        self._did("tool_result", toolCallId=call_id, toolName=tool, text=text, isError=is_error, **code)

    def spend(self, usage: Usage) -> None:
        """Record the cost so far: totals, in which a number that the program does not report is None."""
        if usage != self.usage:
            self.usage = usage
            self._record("usage", **usage.model_dump(mode="json"))
        self.progress()

    def warn(self, message: str) -> None:
        """Record something that people should know."""
        self._record("warning", message=message)

    def note(self, message: str) -> None:
        """Record something that people should know of the whole run."""
        self.warn(message)
        self.noted.append(message)

    def other(self, kind: str, event: Any) -> None:
        """Record an event of an unknown kind, as it came."""
        self._did("program_event", name=kind, event=event)

    def _did(self, kind: str, **facts: Any) -> None:
        self._words = ""
        self.progress()
        self._record(kind, **facts)

    def _record(self, kind: str, **facts: Any) -> None:
        self._events += 1
        self._characters += len(json.dumps(facts, ensure_ascii=False))
        if self._events <= MOST_EVENTS and self._characters <= MOST_CHARACTERS:
            self._run.record(kind, **facts)
        elif not self._is_full:
            self._is_full = True
            self._run.record("warning", message="The program says so much that the rest is not written down.")


# -- its process


class ProgramRunner:
    """Implements `loop.runner.Runner` with a program that speaks a dialect."""

    def __init__(
        self,
        run: RunContext,
        agent: AgentDefinition,
        dialect: Dialect,
        events: ProgramEvents,
        start: Callable[[], Awaitable[AgentProcess]],
        leave: Callable[[], Awaitable[None]],
        watching: AbstractAsyncContextManager[object],
    ) -> None:
        """`start` raises RunRefused with `config` if the program cannot be started.

        `leave` closes what the start has opened around it. `watching` is entered before the program
        starts, and left when it has ended.
        """
        self._enter = watching
        self._watching = AsyncExitStack()
        self._run = run
        self._agent = agent
        self._dialect = dialect
        self._events = events
        self._start = start
        self._leave = leave
        self._process: AgentProcess | None = None
        self._conversation: asyncio.Task[Outcome] | None = None

    @property
    def usage(self) -> Usage:
        """What the run has used so far, as far as the program reports it."""
        return self._events.usage

    async def work(self) -> Outcome:
        """Start the program and let it work to its end. Raises as `Runner.work` does."""
        self._run.checkpoint()
        with self._run.working():
            await self._watching.enter_async_context(self._enter)
            try:
                outcome = await self._started()
            except SessionLost as error:
                self._events.session_lost(error)
                outcome = await self._started()
            outcome = await self._checked(outcome)
        self._remember(outcome)
        return replace(outcome, warnings=self._events.noted)

    async def _started(self) -> Outcome:
        """Start the program, and return the end of its conversation. Raises SessionLost."""
        if (ended := self._process) is not None:
            self._process = None  # a stop meanwhile must not close its descriptors a second time
            await ended.aclose()
        self._process = await self._start()
        self._events.progress()
        self._conversation = asyncio.create_task(self._dialect.converse(self._process))
        return await self._conversed(self._conversation)

    async def _conversed(self, conversation: "asyncio.Task[Outcome]") -> Outcome:
        """Return the end of the conversation, which is bounded in silence."""
        while not conversation.done():
            left = self._agent.limits.idle_timeout_seconds - self._events.idle_seconds
            await asyncio.wait([conversation], timeout=min(_LOOK_SECONDS, max(0.05, left)))
            if self._events.idle_seconds < _LOOK_SECONDS or conversation.done():
                continue
            if self._run.waits_for_others:
                with self._run.waiting():
                    await self._others_done(conversation)
            elif self._events.idle_seconds < self._agent.limits.idle_timeout_seconds:
                continue
            elif self._events.uses_tools:
                self._events.progress()
            else:
                last = self._events.last_words or self._events.text.strip()[-_LONGEST_WORDS:]
                words = f" Its last words: {last}" if last else " It had said nothing."
                raise RunRefused(
                    "timeout",
                    "The program gave no sign of work for "
                    f"{self._agent.limits.idle_timeout_seconds:g} s.{words}",
                    "It may wait for a terminal or a login: start it once by hand. Or raise "
                    "`idleTimeoutSeconds`.",
                )
        return conversation.result()

    async def _others_done(self, conversation: "asyncio.Task[Outcome]") -> None:
        """Return when nothing is waited for, or the program works on meanwhile."""
        while self._run.waits_for_others and not conversation.done():
            silent = self._events.idle_seconds
            await asyncio.wait([conversation], timeout=_LOOK_SECONDS)
            if self._events.idle_seconds < silent:
                return
        self._events.progress()

    async def _checked(self, outcome: Outcome) -> Outcome:
        """Return an outcome whose structured output fits the schema of the agent."""
        if outcome.failure is not None or self._agent.output_schema is None:
            return outcome
        problem: str | None = "is not JSON"
        outcome = outcome if outcome.has_output else _with_output(outcome)
        if outcome.has_output:
            problem = await misfit(self._agent.output_schema, outcome.output)
        if problem is None:
            return outcome
        failure = Failure(
            code="invalid_output",
            message=f"The program ended without the output that its agent promises: its result {problem}.",
            hint="Its text is kept in result.json; tell it in its prompt which form the result has.",
        )
        return replace(outcome, output=None, has_output=False, failure=failure)

    def cut_short(self, failure: Failure) -> Outcome:
        """Return the outcome of a run that something else ends: its work so far is paid for, and kept."""
        outcome = Outcome(self._events.text, failure=failure, warnings=self._events.noted)
        self._remember(outcome)
        return outcome

    def _remember(self, outcome: Outcome) -> None:
        """Keep the end of the conversation, for a run that continues it without the program's own record."""
        if outcome.text.strip():
            text = {"type": "text", "text": outcome.text}
            self._run.remember({"role": "assistant", "content": [text]})

    async def stop_programs(self) -> None:
        """End the program: interrupt it, listen to its last words, then end its whole tree."""
        async with self._watching:
            if self._process is not None:
                await self._end(self._process)

    async def _end(self, process: AgentProcess) -> None:
        conversation = self._conversation
        if conversation is not None:
            await asyncio.wait([conversation], timeout=_ANSWER_SECONDS)
        if conversation is not None and not conversation.done():
            self._dialect.interrupt(process)
            await asyncio.wait([conversation], timeout=_INTERRUPT_SECONDS)
            await process.end(0, _GRACE_SECONDS)
            await asyncio.wait([conversation], timeout=_EXIT_SECONDS)
        else:
            await process.end(_EXIT_SECONDS, _GRACE_SECONDS)

    async def aclose(self) -> None:
        """Close the pipes, and cancel the conversation if it is still under way."""
        if self._conversation is not None:
            self._conversation.cancel()
            with suppress(asyncio.CancelledError, Exception):  # how the run ended is known already
                await self._conversation
        try:
            if self._process is not None:
                await self._process.aclose()
        finally:
            await self._leave()


def _with_output(outcome: Outcome) -> Outcome:
    """Return an outcome with the JSON of its text: all of it, a fenced block in it, or its last line."""
    text = outcome.text.strip()
    fenced = text.rpartition("```json\n")[2].partition("```")[0]
    for candidate in (text, fenced, text.rpartition("\n")[2]):
        with suppress(ValueError, RecursionError):
            return replace(outcome, output=storable(candidate), has_output=True)
    return outcome
