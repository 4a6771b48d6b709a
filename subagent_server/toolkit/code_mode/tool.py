"""The tool `execute_python_code`: one program that calls the run's tools, instead of many turns."""

import asyncio
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from subagent_server.domain.errors import BadArgument, RunRefused
from subagent_server.domain.secrets import Masker
from subagent_server.host.directory import Directory
from subagent_server.sandbox.name_watch import CommandWatch, watching
from subagent_server.sandbox.refusal import BoxRefused, end_of_run
from subagent_server.toolkit.code_mode.calls import Functions, ProgramCalls
from subagent_server.toolkit.code_mode.clock import ProgramClock
from subagent_server.toolkit.code_mode.description import described
from subagent_server.toolkit.code_mode.execution import Ended, Execution
from subagent_server.toolkit.code_mode.names import TOOL_NAME
from subagent_server.toolkit.code_mode.outcome import Outcome
from subagent_server.toolkit.code_mode.process import ProgramPlace
from subagent_server.toolkit.code_mode.records import ProgramRecord, ProgramRecords
from subagent_server.toolkit.run_context import RunContext
from subagent_server.toolkit.tool import ToolResult
from subagent_server.toolkit.workspace.arguments import Arguments, parse_arguments
from subagent_server.toolkit.workspace.off_loop import entered_off_loop, off_loop
from subagent_server.toolkit.workspace.output import OutputCapture

MOST_CODE_CHARACTERS = 1 << 20
"""How long a program may be."""


class _ProgramArguments(Arguments):
    code: str = Field(min_length=1)
    execution_timeout: int = Field(alias="executionTimeout")


@dataclass(frozen=True)
class ProgramSetting:
    """The surroundings of all programs of a run. `outputs` has the files of long outputs."""

    run: RunContext
    place: ProgramPlace
    records: ProgramRecords
    outputs: Directory
    masker: Masker
    version: str
    most_seconds: int
    stub_characters: int
    watch: CommandWatch | None = None


class ExecutePythonCode:
    """Runs programs, one after the other, each in a process of its own."""

    name = TOOL_NAME
    sequential = True

    def __init__(self, functions: Functions, setting: ProgramSetting) -> None:
        self._functions = functions
        self._setting = setting
        self._task: asyncio.Task[Any] | None = None
        self._turn = asyncio.Lock()
        self._closed = False

    def definition(self) -> dict[str, Any]:
        """Return the tool as the model sees it, with the functions that its programs have."""
        most = self._setting.most_seconds
        return {
            "name": self.name,
            "description": described(self._functions, self._setting.version, self._setting.stub_characters),
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
        try:
            wanted = self._checked(parse_arguments(_ProgramArguments, arguments))
        except BadArgument as error:
            return ToolResult.failure(error.sentence)
        async with self._turn:
            if self._closed:
                return ToolResult.failure("No more programs are run because the run is ending: finish now.")
            return await self._run(wanted)

    def _checked(self, wanted: _ProgramArguments) -> _ProgramArguments:
        most = self._setting.most_seconds
        if not 1 <= wanted.execution_timeout <= most:
            raise BadArgument(f"`executionTimeout` must be 1 to {most} seconds.")
        if len(wanted.code) > MOST_CODE_CHARACTERS:
            raise BadArgument(
                f"The program has {len(wanted.code):,} characters, and {MOST_CODE_CHARACTERS:,} are the "
                "most: let it read large data from a file."
            )
        return wanted

    async def _run(self, wanted: _ProgramArguments) -> ToolResult:
        setting, code = self._setting, without_fences(wanted.code)
        with await off_loop(lambda: setting.records.begin(code)) as record:
            return await self._executed(code, record, wanted.execution_timeout)

    async def _executed(self, code: str, record: ProgramRecord, seconds: int) -> ToolResult:
        setting, clock = self._setting, ProgramClock(seconds)
        calls = ProgramCalls(record.number, self._functions, setting.run, clock, record.keep_call)
        capture = OutputCapture(setting.outputs, masker=setting.masker)
        mark = f"{setting.run.run_id}/{record.number}"
        try:
            watched = watching(setting.watch, f"program {record.number}")
            async with entered_off_loop(watched) as came:
                ended = await self._ended(code, calls, mark, capture)
        except BoxRefused as refusal:
            raise end_of_run("The program", refusal) from refusal
        except OSError as error:
            return ToolResult.failure(f"The program could not be started ({error}): use other tools.")
        result = await off_loop(lambda: _result(ended, calls, record))
        return result.with_remark(came.remark)

    async def _ended(self, code: str, calls: ProgramCalls, mark: str, capture: OutputCapture) -> Ended:
        """Run a program to its end; if its box cannot be built for a reason that passes, once more."""
        place = self._setting.place
        try:
            return await Execution(place, code, calls).run(mark, capture)
        except BoxRefused as refusal:
            if not refusal.passes:
                raise
        return await Execution(place, code, calls).run(mark, capture)

    async def aclose(self) -> None:
        """Run no more programs. A running program ends with the task that called the tool."""
        self._closed = True


def _result(ended: Ended, calls: ProgramCalls, record: ProgramRecord) -> ToolResult:
    """Return what the model sees of a program, and keep it.

    Raises:
        RunRefused: our own part of the program has failed.
    """
    end = ended.end
    parts = [ended.output.rstrip("\n"), *(f"[{remark}]" for remark in calls.remarks), end.remark]
    failed = end.outcome is not Outcome.DONE
    if failed and (listed := calls.listed()):
        parts.append(f"[these calls had been made, and they are not undone:]\n{listed}")
    text = "\n".join(part for part in parts if part.strip()) or "(no output)"
    record.finish(text, {"outcome": int(end.outcome), "exitCode": end.exit_code})
    if end.outcome is Outcome.FAULT:
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
