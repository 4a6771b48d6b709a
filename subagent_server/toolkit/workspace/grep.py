"""The tool `grep`: lines of files by a regular expression."""

from contextlib import closing
from typing import Any

from pydantic import Field
from pydantic.alias_generators import to_camel

from subagent_server.domain.errors import BadArgument, shorten
from subagent_server.host.inside import printable
from subagent_server.toolkit.tool import ToolResult
from subagent_server.toolkit.workspace.arguments import Arguments, parse_arguments
from subagent_server.toolkit.workspace.grep_pattern import fault_of_pattern, reason_of
from subagent_server.toolkit.workspace.grep_result import OutputMode, printed_lines, printing, report_on
from subagent_server.toolkit.workspace.off_loop import off_loop
from subagent_server.toolkit.workspace.path_pattern import BadPathPattern, PathPattern
from subagent_server.toolkit.workspace.result_lines import Enough, ResultLines
from subagent_server.toolkit.workspace.ripgrep import (
    MEMORY_BYTES,
    Ripgrep,
    escaped,
    ignoring,
    only_files_named,
)
from subagent_server.toolkit.workspace.search_arguments import INCLUDE_IGNORED, PATH, named, search_errors
from subagent_server.toolkit.workspace.search_scope import BINARY_HEAD, SearchScope, SearchTarget, first_zero

_ADVICE = "use a simpler pattern or narrow the path"


class _GrepArguments(Arguments, alias_generator=to_camel):
    pattern: str = Field(min_length=1)
    path: str | None = None
    glob: str | None = None
    output_mode: OutputMode | None = None
    context: int | None = Field(default=None, ge=0, le=100)
    ignore_case: bool | None = None
    include_ignored: bool | None = None
    limit: int | None = Field(default=None, ge=1, le=10_000)


_DEFINITION: dict[str, Any] = {
    "description": (
        "Search text files for lines that match a regular expression (ripgrep syntax, one line at a time; no "
        "lookaround or backreferences; escape a literal { as \\{). Hidden files are searched; .git, binary "
        "files, what ignore files (such as .gitignore) name and what symbolic links lead to are not. Results "
        "are relative to the working directory."
    ),
    "input_schema": {
        "type": "object",
        "properties": {
            "pattern": {"type": "string", "description": "The regular expression."},
            "path": {**PATH, "description": f"{PATH['description']} A directory or a file."},
            "glob": {
                "type": "string",
                "description": "Only files such as *.py or src/**/*.{ts,tsx}.",
            },
            "outputMode": {
                "type": "string",
                "enum": ["files", "content", "count"],
                "description": "Paths of files (the default), matching lines with numbers, or counts.",
            },
            "context": {
                "type": "integer",
                "minimum": 0,
                "description": "Lines around matches, for content.",
            },
            "ignoreCase": {"type": "boolean"},
            "includeIgnored": INCLUDE_IGNORED,
            "limit": {"type": "integer", "minimum": 1, "description": "Most files or matching lines; 200."},
        },
        "required": ["pattern"],
        "additionalProperties": False,
    },
}


class GrepTool:
    """Finds lines in the files of `scope`, for at most about `seconds` and with so much memory."""

    name = "grep"
    sequential = False

    def __init__(
        self, scope: SearchScope, *, seconds: float = 60.0, memory_bytes: int = MEMORY_BYTES
    ) -> None:
        self._scope = scope
        self._seconds = seconds
        self._memory_bytes = memory_bytes

    def definition(self) -> dict[str, Any]:
        """Return the entry of `tools`."""
        return {"name": self.name, **_DEFINITION}

    async def call(self, arguments: dict[str, Any]) -> ToolResult:
        """Search; no match is a result and not a failure."""
        try:
            program = Ripgrep(self._seconds, self._memory_bytes)
            search = _GrepSearch(parse_arguments(_GrepArguments, arguments), self._scope, program)
            return await off_loop(search.run, interrupt=program.cancel)
        except BadArgument as error:
            return ToolResult.failure(error.sentence)

    async def aclose(self) -> None:
        """Nothing is held between calls."""


class _GrepSearch:
    """One call of the tool."""

    def __init__(self, wanted: _GrepArguments, scope: SearchScope, program: Ripgrep) -> None:
        self._program = program
        self._wanted = wanted
        self._scope = scope
        self._mode: OutputMode = wanted.output_mode or "files"
        self._files = _file_pattern(wanted)
        if (why := fault_of_pattern(wanted.pattern)) is not None:
            raise _unsearchable(wanted, why)

    def run(self) -> ToolResult:
        """Search, and return the result. Raises BadArgument."""
        result = ResultLines(self._wanted.limit or 200)
        with search_errors(self._wanted.path), self._scope.open(self._wanted.path, files=True) as target:
            binary_from = None if target.file is None else first_zero(target.file)
            if target.file is not None and binary_from is not None and binary_from < BINARY_HEAD:
                notes = [f"{printable(target.file.name)} is a binary file, which is not searched"]
            else:
                notes = self._search(target, result)
                if target.file is not None and binary_from is not None:
                    notes.append(f"{printable(target.file.name)} is binary from byte {binary_from:,} on")
        nothing = f"No match for {shorten(self._wanted.pattern)} in {named(self._wanted.path)}."
        return ToolResult.of_text(result.text(nothing, notes))

    def _search(self, target: SearchTarget, result: ResultLines) -> list[str]:
        """Add what is found to `result`, and return notes."""
        mode, one_file = self._mode, target.file is not None
        report = report_on(mode, target, result, self._wanted.context or 0)
        notes = []
        try:
            with closing(self._program.output(target, self._options(target))) as output:
                for line in printed_lines(output, mode, one_file=one_file):
                    if one_file or self._is_wanted(target, line.path):
                        report.take(line)
            report.finish()
        except Enough as enough:
            notes.append(str(enough))
        if (refusal := self._program.refusal) is not None:
            raise _unsearchable(self._wanted, reason_of(refusal, self._wanted.pattern))
        return [*notes, *self._program.notes(_ADVICE)]

    def _options(self, target: SearchTarget) -> list[str]:
        """Return the options for ripgrep. A file is found by its name: no link is read in its place."""
        wanted, one_file = self._wanted, target.file
        options = [
            f"--regexp={wanted.pattern}",
            "--ignore-case" if wanted.ignore_case else "--case-sensitive",
            "--crlf",
            "--sort=path",
            *printing(self._mode, wanted.context or 0, one_file=one_file is not None),
        ]
        if one_file is not None:
            return [*options, "--no-ignore", "--max-depth=1", f"--glob=/{escaped(one_file.name)}"]
        root, include_ignored = self._scope.cwd, bool(wanted.include_ignored)
        names = self._files.names() if self._files is not None else None
        return [*options, *ignoring(root, include_ignored=include_ignored), *only_files_named(names)]

    def _is_wanted(self, target: SearchTarget, path: str) -> bool:
        """Whether a found file counts; `glob` without a `/` is for names, else for paths."""
        files, pattern = self._files, self._wanted.glob
        if target.leaves_out(path):
            return False
        if files is None or pattern is None:
            return True
        if "/" not in pattern:
            return files.matches(path.rpartition("/")[2])
        return files.matches(path) or (bool(target.base) and files.matches(f"{target.base}/{path}"))


def _file_pattern(wanted: _GrepArguments) -> PathPattern | None:
    try:
        return PathPattern(wanted.glob) if wanted.glob else None
    except BadPathPattern as error:
        raise _unsearchable(wanted, str(error)) from error


def _unsearchable(wanted: _GrepArguments, why: str) -> BadArgument:
    return BadArgument(f"{shorten(wanted.pattern)} cannot be searched for: {why}.")
