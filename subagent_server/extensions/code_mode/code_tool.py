"""The tool `execute_python_code`: one program that calls the run's tools, instead of many turns.

A call is in the journal before it begins, so a continuation knows which calls a program has made.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import Field

from subagent_server.extensions.code_mode.agent_calls import AgentCalls
from subagent_server.extensions.code_mode.execution import (
    OF_AGENTS,
    Execution,
    Later,
    ProgramClock,
    ProgramEnd,
    ProgramEnvironment,
    ProgramOutcome,
    Reply,
    version_of,
)
from subagent_server.extensions.code_mode.stubs import Catalogue, ToolFunction
from subagent_server.run.agent_definition import (
    CALLS_FILE,
    CODE_TOOL_NAME,
    END_FILE,
    OUTPUT_FILE,
    PROGRAM_FILE,
    CodeMode,
)
from subagent_server.run.errors import CallerError, RunRefused
from subagent_server.run.files import Directory
from subagent_server.run.states import cut
from subagent_server.sandbox.file_watch import watching
from subagent_server.sandbox.readable import BoxRefused, box_environment, end_of_run
from subagent_server.toolbox.basic import AskParent
from subagent_server.toolbox.outputs import OutputCapture
from subagent_server.toolbox.run_context import RunContext
from subagent_server.toolbox.tool import ContentBlock, RunTools, Tool, ToolResult
from subagent_server.toolbox.workspace import Arguments, entered_off_loop, off_loop, parse_arguments

MOST_CODE_CHARACTERS = 1 << 20
"""How long a program may be."""
MOST_MEDIA = 20
"""How many images and documents of its tools the model sees after a program."""
_MOST_LISTED = 50
_SHOWN = 300
_KEPT = 2_000
_UNKNOWN = "it is not known what it did: the program ended before its answer"
_LOOK_UPS = {"help": Catalogue.help, "search_tools": Catalogue.search}
"""The questions of a program about its tools, which are not calls of one."""

_RULES = """\
Run a program in Python {version}. One program does what would take many tool calls: it loops, filters and \
joins results, and only what it prints comes back to you.

- Write a script (the value of a last expression is shown), or define `run()` or `async def run()`.
- The functions below are tools. Call them with keyword arguments and without `await`; side by side with \
`gather(lambda: f(a=1), lambda: f(a=2))`, which returns the results in order.
- A tool that fails raises `ToolError`. A result of type `Text` is a `str`; `.json()` gives its value.
- Each program is a new process: variables do not last, files do. Nothing can be installed.
- Calls take effect as they are made, also if the program fails later.{ask}{agents}
"""
_ASK = """
- `ask_parent(question="...", options=["..."])` asks your parent and returns the answer; no time passes \
meanwhile."""
_AGENTS = """
- `from subagent import agents, gather`: `agents.NAME(prompt="...")` does what the tool `run_NAME` does, and \
returns the result; `gather(agents.NAME.call(prompt="..."), ...)` does so side by side. A call that another \
program of yours has made returns its result again."""


async def with_programs(setup: RunTools) -> list[Tool]:
    """Return the tool that runs programs, before the MCP tools that stay ordinary ones.

    Raises:
        RunRefused: `config`; names clash, or there is no such interpreter.
    """
    programs = await programs_of(setup)
    return [ExecutePythonCode(programs), *programs.functions.ordinary]


async def programs_of(setup: RunTools) -> "Programs":
    """Return what the programs of a run share. Raises as `with_programs` does."""
    code_mode = setup.agent.code_mode or CodeMode()
    functions = Functions()
    if setup.listed:
        # Not at the top: this imports the SDK of the protocol.
        from subagent_server.extensions.code_mode.mcp_functions import McpFunctions

        functions = await off_loop(lambda: McpFunctions.of_run(setup, code_mode.excluded_tools))
    for warning in functions.warnings:
        setup.run.record("warning", message=warning)
    functions.ask = next((tool for tool in setup.own if isinstance(tool, AskParent)), None)
    version, python = ".".join(map(str, sys.version_info[:3])), code_mode.python
    if python is not None:
        version = await off_loop(lambda: version_of(python, setup.box and setup.box()))
    # Without a box programs have the allow-list of boxes, and the mark of the run.
    home = Path(setup.environment.get("HOME") or "/")
    variables = box_environment(setup.environment, setup.agent.env, home, network=True)
    variables["SUBAGENT_RUN_ID"] = setup.run.run_id
    environment = ProgramEnvironment(python or sys.executable, Path.cwd(), variables, setup.box, setup.spare)
    return Programs(setup, functions, environment, version, ProgramRecords(setup))


@dataclass(frozen=True)
class Programs:
    """What the programs of a run share. `version` is that of the interpreter of `environment`."""

    setup: RunTools
    functions: "Functions"
    environment: ProgramEnvironment
    version: str
    records: "ProgramRecords"

    async def executed(
        self, code: str, record: "ProgramRecord", seconds: float, flow: dict[str, Any] | None = None
    ) -> tuple[ProgramEnd, "ProgramCalls", str]:
        """Run a program to its end; return that, its calls, and a remark on files that came meanwhile.

        Raises:
            OSError: it could not be started.
            BoxRefused: it is not in the box that was asked for.
            RunOver, RunRefused: the run ends.
        """
        setup, clock, agents = self.setup, ProgramClock(seconds), None
        if (delegation := setup.delegation) is not None:
            agents = await off_loop(
                lambda: AgentCalls(delegation.service, setup.run, record.directory, setup.masker)
            )
        calls = ProgramCalls(record, self.functions, setup.run, clock, agents)
        task = {
            "code": code,
            "functions": self.functions.catalogue.table,
            "types": self.functions.catalogue.types,
            "agents": agents.names if agents is not None else [],
            "flow": flow,
        }
        execution = Execution(self.environment, task, clock, calls.answer)
        mark = f"{setup.run.run_id}/{record.number}"
        capture = OutputCapture(setup.outputs, masker=setup.masker)
        try:
            watched = watching(setup.watch, f"program {record.number}")
            async with entered_off_loop(watched) as came:
                try:
                    end = await execution.run(mark, capture)
                except BoxRefused as refusal:
                    if not refusal.passes:
                        raise
                    end = await execution.run(mark, capture)  # the reason passes: once more
        finally:
            if agents is not None:
                await agents.aclose()
        return end, calls, came.remark


# -- the programs of a run on disk: `code/NNN/` with the code, its calls, its output and its end


class ProgramRecords:
    """Numbers the programs of a run. A disk that refuses is a warning, once, and the programs continue."""

    def __init__(self, setup: RunTools) -> None:
        self.masker = setup.masker
        self._setup = setup
        self._refused = False
        self._last = 0

    def begin(self, code: str) -> "ProgramRecord":
        """Return the record of the next program, with its code in it."""
        self._last += 1
        record = ProgramRecord(self._last, self._setup.code.below(f"{self._last:03d}"), self)
        with self.warned():
            self._setup.code.make()
            record.directory.make_new()
        record.write(PROGRAM_FILE, code)
        return record

    @contextmanager
    def warned(self) -> Iterator[None]:
        """Make a refusal of the disk a warning of the run, the first time."""
        try:
            yield
        except OSError as error:
            if not self._refused:
                self._refused = True
                why = f"are not kept in {self._setup.code.path}: {error.strerror}"
                self._setup.run.record("warning", message=f"The programs of this run {why}.")


@dataclass(frozen=True)
class ProgramRecord:
    """The record of one program."""

    number: int
    directory: Directory
    _records: ProgramRecords

    def keep_call(self, facts: dict[str, Any]) -> None:
        """Append a line about a call."""
        self._write(CALLS_FILE, _as_json(self._records.masker.data(facts)) + "\n", os.O_APPEND)

    def write(self, name: str, text: str) -> None:
        """Write a whole file."""
        self._write(name, self._records.masker.text(text), os.O_TRUNC)

    def _write(self, name: str, text: str, how: int) -> None:
        with self._records.warned():
            descriptor = self.directory.entry(name).open(os.O_WRONLY | os.O_CREAT | how)
            with os.fdopen(descriptor, "wb", buffering=0) as file:
                file.write(text.encode("utf-8", "replace"))


# -- the calls of a program


@dataclass
class Called:
    """The outcome of a call of a tool: the reply to the program, what the model sees of it, and remarks."""

    reply: Reply
    media: Sequence[ContentBlock] = ()
    remarks: Sequence[str] = ()


class Functions:
    """The functions of all programs of a run: none, without servers. `ask` is None if it may not ask."""

    catalogue = Catalogue((), {})
    ordinary: Sequence[Tool] = ()
    warnings: Sequence[str] = ()
    ask: AskParent | None = None

    def is_read_only(self, function: ToolFunction) -> bool:
        """Whether a tool changes nothing."""
        raise NotImplementedError

    async def call(self, function: ToolFunction, arguments: dict[str, Any]) -> Called:
        """Call a tool; every failure is an answer for the program."""
        raise NotImplementedError


@dataclass
class _Call:
    """One call, as a failed program lists it."""

    number: int
    function: str
    arguments: str
    outcome: str = _UNKNOWN

    def __str__(self) -> str:
        return f"{self.number}. {self.function}({self.arguments}): {self.outcome}"


@dataclass
class ProgramCalls:
    """Answers the calls of one program by the run's own sessions, and remembers them with their outcomes."""

    record: ProgramRecord
    functions: Functions
    run: RunContext
    clock: ProgramClock
    agents: AgentCalls | None
    media: list[ContentBlock] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    _made: list[_Call] = field(default_factory=list)
    _asking: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self._by_name = {each.qualified: each for each in self.functions.catalogue.functions}

    def listed(self) -> str:
        """Return the calls that have been made, a line each, for the model."""
        lines = [str(call) for call in self._made[:_MOST_LISTED]]
        if len(self._made) > _MOST_LISTED:
            lines.append(f"... and {len(self._made) - _MOST_LISTED} more calls")
        return "\n".join(lines)

    async def answer(self, function: str, arguments: dict[str, Any]) -> Reply | Later:
        """Answer one call, at once or later.

        Raises:
            RunOver: the run has ended.
            RunRefused: no answer of the parent came, and this ends the run.
        """
        if function.startswith(OF_AGENTS):
            if self.agents is None:
                return {"error": "This run may start no agents: its file names none."}
            with self.clock.paused():
                return await self.agents.reply(function.removeprefix(OF_AGENTS), arguments)
        if (look_up := _LOOK_UPS.get(function)) is not None:
            about = str(arguments.get("about", ""))
            return {"value": await asyncio.to_thread(look_up, self.functions.catalogue, about)}
        asks = self.functions.ask if function == AskParent.name else None
        if asks is None and function not in self._by_name:
            return {"error": f"There is no function {function[:_SHOWN]!r} here."}
        self.run.checkpoint()
        call = self._begun(function, arguments)
        began = time.monotonic()
        reply: Reply = {"error": _UNKNOWN}
        try:
            if asks is not None:
                reply = await self._asked(asks, arguments)
            else:
                reply = await self._called(self._by_name[function], arguments)
            call.outcome = f"{'failed' if 'error' in reply else 'done'}: {_preview(reply, _SHOWN)}"
        finally:
            seconds = round(time.monotonic() - began, 3)
            facts = {"isError": "error" in reply, "text": _preview(reply, _KEPT), "seconds": seconds}
            self._keep("program_result", call, {"function": function}, facts)
        return reply

    async def _asked(self, ask: AskParent, arguments: dict[str, Any]) -> Reply:
        """Ask the parent, one question after the other; the program's clock stops meanwhile."""
        try:
            with self.clock.paused():
                async with self._asking:
                    return {"value": (await ask.call(arguments)).text}
        except CallerError as error:
            return {"error": error.sentence}

    async def _called(self, function: ToolFunction, arguments: dict[str, Any]) -> Reply:
        """Call a tool; a flow gets the result on record, unless the tool changes nothing."""

        async def called() -> Reply:
            brought = await self.functions.call(function, arguments)
            self.remarks += brought.remarks
            room = max(MOST_MEDIA - len(self.media), 0)
            if len(brought.media) > room:
                self.remarks.append(
                    f"A program shows {MOST_MEDIA} images and documents; the others were left out."
                )
            self.media += brought.media[:room]
            return brought.reply

        if self.agents is None or self.functions.is_read_only(function):
            return await called()
        return await self.agents.tool_reply(function.qualified, arguments, called)

    def _begun(self, function: str, arguments: dict[str, Any]) -> _Call:
        shown = ", ".join(
            f"{name}={_as_json(value)}" for name, value in arguments.items() if value is not None
        )
        call = _Call(len(self._made) + 1, function, cut(shown, _SHOWN))
        self._made.append(call)
        written = _as_json(arguments)
        kept = arguments if len(written) <= _KEPT else cut(written, _KEPT)
        self._keep("program_call", call, {}, {"function": function, "arguments": kept})
        return call

    def _keep(self, kind: str, call: _Call, more: dict[str, Any], facts: dict[str, Any]) -> None:
        """Record a fact about a call in the journal, with `more`, and in the record of the program."""
        self.run.record(kind, program=self.record.number, call=call.number, **more, **facts)
        self.record.keep_call({"call": call.number, **facts})


def _preview(reply: Reply, characters: int) -> str:
    """Return the beginning of an answer, for people and for lists."""
    value = next((reply[key] for key in ("error", "text", "value") if key in reply), None)
    return cut(value if isinstance(value, str) else _as_json(value), characters)


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


# -- the tool


class _ProgramArguments(Arguments):
    code: str = Field(min_length=1)
    execution_timeout: int = Field(alias="executionTimeout")


class ExecutePythonCode:
    """Runs programs, one after the other, each in a process of its own."""

    name = CODE_TOOL_NAME
    sequential = True

    def __init__(self, programs: Programs) -> None:
        self._programs = programs
        self._code_mode = programs.setup.agent.code_mode or CodeMode()
        self._turn = asyncio.Lock()
        self._closed = False

    def definition(self) -> dict[str, Any]:
        """Return the tool as the model sees it, with the functions that its programs have."""
        most, functions = self._code_mode.max_timeout_seconds, self._programs.functions
        rules = _RULES.format(
            version=self._programs.version,
            ask=_ASK if functions.ask is not None else "",
            agents=_AGENTS if self._programs.setup.delegation is not None else "",
        )
        stubs = functions.catalogue.text(self._code_mode.stub_characters)
        return {
            "name": self.name,
            "description": f"{rules}\n```python\n{stubs}\n```" if stubs else rules,
            "input_schema": {
                "type": "object",
                "properties": {
                    "code": {"type": "string", "description": "The whole program, in Python."},
                    "executionTimeout": {
                        "type": "integer",
                        "minimum": 1,
                        "maximum": most,
                        "description": f"The seconds after which the program is ended, 1 to {most}.",
                    },
                },
                "required": ["code", "executionTimeout"],
                "additionalProperties": False,
            },
        }

    async def call(self, arguments: dict[str, Any]) -> ToolResult:
        """Run a program to its end. A cancelled call first ends its program."""
        most = self._code_mode.max_timeout_seconds
        wanted = parse_arguments(_ProgramArguments, arguments)
        if not 1 <= wanted.execution_timeout <= most:
            return ToolResult.failure(f"`executionTimeout` must be 1 to {most} seconds.")
        if len(wanted.code) > MOST_CODE_CHARACTERS:
            return ToolResult.failure(
                f"The program has {len(wanted.code):,} characters, and {MOST_CODE_CHARACTERS:,} are the "
                "most: let it read large data from a file."
            )
        async with self._turn:
            if self._closed:
                return ToolResult.failure("No more programs are run because the run is ending: finish now.")
            code = without_fences(wanted.code)
            record = await off_loop(lambda: self._programs.records.begin(code))
            return await self._executed(code, record, wanted.execution_timeout)

    async def _executed(self, code: str, record: ProgramRecord, seconds: int) -> ToolResult:
        try:
            end, calls, remark = await self._programs.executed(code, record, seconds)
        except BoxRefused as refusal:
            raise end_of_run("The program", refusal) from refusal
        except OSError as error:
            return ToolResult.failure(f"The program could not be started ({error}): use other tools.")
        result = await off_loop(lambda: _result(end, calls, record))
        return result.with_remark(remark)

    async def aclose(self) -> None:
        """Run no more programs. A running program ends with the task that called the tool."""
        self._closed = True


def _result(end: ProgramEnd, calls: ProgramCalls, record: ProgramRecord) -> ToolResult:
    """Return what the model sees of a program, and keep it.

    Raises:
        RunRefused: our own part of the program has failed.
    """
    parts = [end.output.rstrip("\n"), *(f"[{each}]" for each in dict.fromkeys(calls.remarks)), end.remark]
    failed = end.outcome is not ProgramOutcome.DONE
    if failed and (listed := calls.listed()):
        parts.append(f"[these calls had been made, and they are not undone:]\n{listed}")
    text = "\n".join(part for part in parts if part.strip()) or "(no output)"
    record.write(OUTPUT_FILE, text)
    facts = {"outcome": int(end.outcome), "exitCode": end.exit_code}
    record.write(END_FILE, json.dumps(facts, indent=2) + "\n")
    if end.outcome is ProgramOutcome.FAULT:
        raise RunRefused(
            "agent_error",
            f"Code mode met a fault of its own in program {record.number}: {end.remark}",
            "Please report it; `codeMode: false` in the agent file works without it.",
        )
    media = [] if failed else calls.media
    return ToolResult([{"type": "text", "text": text}, *media], failed, exit_code=int(end.outcome))


def without_fences(code: str) -> str:
    """Return the code without the fences of Markdown around it; its lines keep their numbers."""
    lines = code.split("\n")
    filled = [number for number, line in enumerate(lines) if line.strip()]
    if len(filled) < 2 or not lines[filled[0]].lstrip().startswith("```"):
        return code
    lines[filled[0]] = ""
    if lines[filled[-1]].strip() == "```":
        lines[filled[-1]] = ""
    return "\n".join(lines)
