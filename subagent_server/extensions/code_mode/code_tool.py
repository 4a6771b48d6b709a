"""The tool `execute_python_code`: one program that calls the run's tools, instead of many turns.

A call is in the journal before it begins, so a continuation knows which calls a program has made.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any, Self

from pydantic import Field

from subagent_server.extensions.code_mode.agent_calls import WOULD_BE_NEW, AgentCalls, DryRun, calls_of
from subagent_server.extensions.code_mode.execution import (
    OF_AGENTS,
    Execution,
    ProgramClock,
    ProgramEnd,
    ProgramEnvironment,
    ProgramOutcome,
    Reply,
    version_of,
)
from subagent_server.extensions.code_mode.identity import NoIdentity
from subagent_server.extensions.code_mode.python_text import shortened
from subagent_server.extensions.code_mode.stubs import Catalogue, ToolFunction, divided
from subagent_server.run.agent_definition import (
    CALLS_FILE,
    CODE_TOOL_NAME,
    END_FILE,
    OUTPUT_FILE,
    PROGRAM_FILE,
    CodeMode,
)
from subagent_server.run.errors import BadArgument, RunRefused
from subagent_server.run.files import Directory
from subagent_server.run.secrets import Masker
from subagent_server.sandbox.file_watch import watching
from subagent_server.sandbox.readable import BoxRefused, box_environment, end_of_run
from subagent_server.toolbox.basic import AskParent
from subagent_server.toolbox.mcp.mcp_tools import McpTool, converted
from subagent_server.toolbox.mcp.server_connection import CallAnswer, ServerTrouble
from subagent_server.toolbox.outputs import KeptOutputs, OutputCapture
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
"""What a program asks about its tools, which is no call of one."""

_RULES = """\
Run a program in Python {version}. One program does what would take many tool calls: it loops, filters and \
joins results, and only what it prints comes back to you.

- Write a script (the value of a last expression is shown), or define `run()` or `async def run()`.
- The functions below are tools. Call them with keyword arguments and without `await`; side by side with \
`gather(lambda: f(a=1), lambda: f(a=2))`, which returns the results in order.
- A tool that fails raises `ToolError`. A result of type `Text` is a `str`; `.json()` gives its value.
- Each program is a new process: variables do not last, files do. Nothing can be installed.
- Calls take effect as they are made, also if the program fails later.{ask}
"""
_ASK = """
- `ask_parent(question="...", options=["..."])` asks your parent and returns the answer; no time passes \
meanwhile."""


async def with_programs(setup: RunTools) -> list[Tool]:
    """Return the tool that runs programs, before the MCP tools that stay ordinary ones.

    Raises:
        RunRefused: `config`; names clash, or there is no such interpreter.
    """
    programs = await programs_of(setup)
    return [ExecutePythonCode(programs), *programs.ordinary]


async def programs_of(setup: RunTools) -> "Programs":
    """Return what the programs of a run have in common. Raises as `with_programs` does."""
    run, code_mode = setup.run, setup.agent.code_mode or CodeMode()
    listed = [tool for tool in setup.listed if isinstance(tool, McpTool)]
    division = await off_loop(lambda: divided(listed, code_mode.excluded_tools))
    for warning in division.warnings:
        run.record("warning", message=warning)
    version, python = ".".join(map(str, sys.version_info[:3])), code_mode.python
    if python is not None:
        version = await off_loop(lambda: version_of(python, setup.box and setup.box()))
    # Without a box programs have the allow-list of boxes, and the mark of the run.
    home = Path(setup.environment.get("HOME") or "/")
    environment = box_environment(setup.environment, setup.agent.env, home, network=True)
    environment["SUBAGENT_RUN_ID"] = run.run_id
    functions = Functions(
        division.catalogue,
        {(tool.offered.server, tool.offered.tool.name): tool for tool in division.functions},
        KeptOutputs(setup.outputs, setup.masker),
        next((tool for tool in setup.own if isinstance(tool, AskParent)), None),
    )
    place = ProgramEnvironment(python or sys.executable, Path.cwd(), environment, setup.box, setup.spare)
    records = ProgramRecords(
        setup.code, setup.masker, lambda message: setup.run.record("warning", message=message)
    )
    return Programs(setup, functions, place, version, division.ordinary, records)


@dataclass(frozen=True)
class Programs:
    """What the programs of a run have in common. `version` is that of the interpreter at `place`."""

    setup: RunTools
    functions: "Functions"
    place: ProgramEnvironment
    version: str
    ordinary: Sequence[McpTool]
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
        if setup.delegation is not None:
            service = setup.delegation.service
            agents = await calls_of(service, setup.run, record.directory, setup.masker)
        calls = ProgramCalls(record, self.functions, setup.run, clock, agents)
        capture = OutputCapture(setup.outputs, masker=setup.masker)
        mark = f"{setup.run.run_id}/{record.number}"
        types = sorted({name for each in self.functions.catalogue.functions for name in each.stub.objects})
        callable_agents = [] if agents is None else await off_loop(agents.table)

        async def executed() -> ProgramEnd:
            table = self.functions.table()
            execution = Execution(self.place, code, table, types, clock, calls.answer, callable_agents, flow)
            return await execution.run(mark, capture)

        try:
            watched = watching(setup.watch, f"program {record.number}")
            async with entered_off_loop(watched) as came:
                try:
                    end = await executed()
                except BoxRefused as refusal:
                    if not refusal.passes:
                        raise
                    end = await executed()  # the box could not be built for a reason that passes: once more
        finally:
            if agents is not None:
                await agents.aclose()
        return end, calls, came.remark


# -- the programs of a run on disk: `code/NNN/` with the code, its calls, its output and its end


class ProgramRecords:
    """Numbers the programs of a run. A disk that refuses is a warning, once, and the programs go on."""

    def __init__(self, directory: Directory, masker: Masker, warn: Callable[[str], None]) -> None:
        self._directory = directory
        self._masker = masker
        self._warn = warn
        self._refused = False
        self._last = 0

    def begin(self, code: str) -> "ProgramRecord":
        """Return the record of the next program, with its code in it."""
        self._last += 1
        directory = self._directory.below(f"{self._last:03d}")
        try:
            self._directory.make()
            directory.make_new()
        except OSError as error:
            self._refuse(error)
        record = ProgramRecord(self._last, directory, self._masker, self._refuse)
        record.write(PROGRAM_FILE, code)
        return record

    def _refuse(self, error: OSError) -> None:
        if not self._refused:
            self._refused = True
            self._warn(f"The programs of this run are not kept in {self._directory.path}: {error.strerror}.")


@dataclass
class ProgramRecord:
    """The record of one program. Leave it as a context: the file of its calls stays open meanwhile."""

    number: int
    directory: Directory
    _masker: Masker
    _refuse: Callable[[OSError], None]
    _calls: FileIO | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._calls is not None:
            self._calls.close()

    def keep_call(self, facts: dict[str, Any]) -> None:
        """Append a line about a call."""
        line = json.dumps(self._masker.data(facts), ensure_ascii=False) + "\n"
        try:
            if self._calls is None:
                self._calls = FileIO(self._opened(CALLS_FILE, os.O_APPEND), "wb")
            self._calls.write(line.encode("utf-8", "replace"))
        except OSError as error:
            self._refuse(error)

    def write(self, name: str, text: str) -> None:
        """Write a whole file."""
        try:
            with os.fdopen(self._opened(name, os.O_TRUNC), "wb") as file:
                file.write(self._masker.text(text).encode("utf-8", "replace"))
        except OSError as error:
            self._refuse(error)

    def _opened(self, name: str, how: int) -> int:
        return self.directory.entry(name).open(os.O_WRONLY | os.O_CREAT | how)


# -- the calls of a program


@dataclass(frozen=True)
class Functions:
    """The functions of all programs of a run, with their handlers. `ask` is None if it may not ask."""

    catalogue: Catalogue
    tools: Mapping[tuple[str, str], McpTool]
    attachments: KeptOutputs
    ask: AskParent | None = None

    def table(self) -> list[Any]:
        """Return what a program needs to make its functions."""
        return [
            [
                each.namespace,
                each.name,
                self.catalogue.flat.get(each.name) is each,
                [[parameter.name, parameter.key, parameter.required] for parameter in each.stub.parameters],
                each.stub.takes_more,
            ]
            for each in self.catalogue.functions
        ]


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
    agents: AgentCalls | None = None
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

    async def answer(self, function: str, arguments: dict[str, Any]) -> Reply:
        """Answer one call.

        Raises:
            RunOver: the run has ended.
            RunRefused: no answer of the parent came, and this ends the run.
        """
        if function.startswith(OF_AGENTS):
            if self.agents is None:
                return {"error": "This run may start no agents: its file names none."}
            with self.clock.paused():
                return await self.agents.answer(function.removeprefix(OF_AGENTS), arguments)
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
        """Ask the parent, one question after the other; the program's clock stands still meanwhile."""
        with self.clock.paused():
            async with self._asking:
                result = await ask.call(arguments)
        return {"error": result.text} if result.is_error else {"value": result.text}

    async def _called(self, function: ToolFunction, arguments: dict[str, Any]) -> Reply:
        """Call a tool; a flow gets what is on record, unless the tool changes nothing."""
        tool = self.functions.tools[function.tool.server, function.tool.name]
        annotations = tool.offered.tool.annotations
        if self.agents is None or (annotations is not None and annotations.read_only_hint):
            return await self._called_now(function, tool, arguments)
        try:
            return await self.agents.recorded(
                "tool",
                [function.qualified, arguments],
                lambda: self._called_now(function, tool, arguments),
                has_effect=True,
                is_failed=lambda reply: "error" in reply,
            )
        except DryRun:
            return WOULD_BE_NEW
        except NoIdentity as error:
            return {"error": str(error)}
        except BadArgument as error:
            return {"error": error.sentence}

    async def _called_now(self, function: ToolFunction, tool: McpTool, arguments: dict[str, Any]) -> Reply:
        try:
            answer = await tool.answer(arguments)
        except ServerTrouble as trouble:
            return {"error": trouble.what}
        self.remarks += answer.remarks
        reply, media = value_of(answer, function, self.functions.attachments)
        room = max(MOST_MEDIA - len(self.media), 0)
        if len(media) > room:
            self.remarks.append(
                f"A program shows {MOST_MEDIA} images and documents; the others were left out."
            )
        self.media += media[:room]
        return reply

    def _begun(self, function: str, arguments: dict[str, Any]) -> _Call:
        shown = ", ".join(
            f"{name}={_as_json(value)}" for name, value in arguments.items() if value is not None
        )
        call = _Call(len(self._made) + 1, function, shortened(shown, _SHOWN))
        self._made.append(call)
        written = _as_json(arguments)
        kept = arguments if len(written) <= _KEPT else shortened(written, _KEPT)
        self._keep("program_call", call, {}, {"function": function, "arguments": kept})
        return call

    def _keep(self, kind: str, call: _Call, more: dict[str, Any], facts: dict[str, Any]) -> None:
        """Record a fact about a call in the journal, with `more`, and in the record of the program."""
        self.run.record(kind, program=self.record.number, call=call.number, **more, **facts)
        self.record.keep_call({"call": call.number, **facts})


def value_of(
    answer: CallAnswer, function: ToolFunction, attachments: KeptOutputs
) -> tuple[Reply, list[ContentBlock]]:
    """Return the value of a result, as its program gets it, and the images and documents for the model.

    A tool that says what it returns returns that value. Any other returns text, with its structured content
    at hand: so the type of a result never depends on the data.
    """
    structured = answer.result.structured_content
    shown = converted(answer.result, attachments)
    if shown.is_error:
        return {"error": shown.text}, []
    media = [block for block in shown.content if block["type"] != "text"]
    if function.tool.output_schema is not None and structured is not None:
        is_wrapped = (
            function.stub.unwraps and isinstance(structured, dict) and structured.keys() == {"result"}
        )
        return {"value": structured["result"] if is_wrapped else structured}, media
    words = [
        block["text"] if block["type"] == "text" else f"[{block['type']}: you will see it after the program]"
        for block in shown.content
    ]
    known = {} if structured is None else {"value": structured}
    return {"text": "\n\n".join(words), **known}, media


def _preview(reply: Reply, characters: int) -> str:
    """Return the beginning of an answer, for people and for lists."""
    value = next((reply[key] for key in ("error", "text", "value") if key in reply), None)
    return shortened(value if isinstance(value, str) else _as_json(value), characters)


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
        rules = _RULES.format(version=self._programs.version, ask=_ASK if functions.ask is not None else "")
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
        try:
            wanted = parse_arguments(_ProgramArguments, arguments)
        except BadArgument as error:
            return ToolResult.failure(error.sentence)
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
            with await off_loop(lambda: self._programs.records.begin(code)) as record:
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
    parts = [end.output.rstrip("\n"), *(f"[{remark}]" for remark in calls.remarks), end.remark]
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
            "Please report it; `codeMode: false` in the agent file goes on without.",
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
