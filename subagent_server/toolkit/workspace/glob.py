"""The tool `glob`: files by a pattern of their path."""

import heapq
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from pathlib import PurePosixPath
from typing import Any

from pydantic import Field
from pydantic.alias_generators import to_camel

from subagent_server.domain.errors import BadArgument, shorten
from subagent_server.toolkit.tool import ToolResult
from subagent_server.toolkit.workspace.arguments import Arguments, parse_arguments
from subagent_server.toolkit.workspace.off_loop import off_loop
from subagent_server.toolkit.workspace.path_pattern import BadPathPattern, PathPattern
from subagent_server.toolkit.workspace.result_lines import ResultLines
from subagent_server.toolkit.workspace.ripgrep import Ripgrep, escaped, ignoring, only_files_named
from subagent_server.toolkit.workspace.search_arguments import (
    INCLUDE_IGNORED,
    PATH,
    named,
    search_errors,
)
from subagent_server.toolkit.workspace.search_scope import SearchScope, SearchTarget

_MOST_FILES = 1_000_000
_LIMIT = 100
_MISSING = "files may be missing; narrow the pattern or give a path"
_Dated = tuple[int, str]
"""A file for sorting, newest first: the negative of its time, and its path."""
_MAGIC = re.compile(r"[*?\[{]")


class _GlobArguments(Arguments, alias_generator=to_camel):
    pattern: str = Field(min_length=1)
    path: str | None = None
    include_ignored: bool | None = None


_DEFINITION: dict[str, Any] = {
    "description": (
        "Find files by a pattern of their path, newest first, at most 100. * and ? stay within a name, ** "
        "crosses directories, {a,b} chooses: src/**/*.{ts,tsx}. Hidden files are found; .git, symbolic links "
        "and what ignore files (such as .gitignore) name are left out. Results are relative to the working "
        "directory."
    ),
    "input_schema": {
        "type": "object",
        "properties": {
            "pattern": {"type": "string", "description": "Such as **/*.py."},
            "path": PATH,
            "includeIgnored": INCLUDE_IGNORED,
        },
        "required": ["pattern"],
        "additionalProperties": False,
    },
}


class GlobTool:
    """Finds files in `scope` by their path, among at most `most_files`, for at most about `seconds`."""

    name = "glob"
    sequential = False

    def __init__(self, scope: SearchScope, *, seconds: float = 30.0, most_files: int = _MOST_FILES) -> None:
        self._scope = scope
        self._seconds = seconds
        self._most_files = most_files

    def definition(self) -> dict[str, Any]:
        """Return the entry of `tools`."""
        return {"name": self.name, **_DEFINITION}

    async def call(self, arguments: dict[str, Any]) -> ToolResult:
        """Find files; to find none is a result and not a failure."""
        try:
            wanted = parse_arguments(_GlobArguments, arguments)
            search = _GlobSearch(wanted, self._scope, self._seconds, self._most_files)
            return await off_loop(search.run, interrupt=search.program.cancel)
        except BadArgument as error:
            return ToolResult.failure(error.sentence)

    async def aclose(self) -> None:
        """Nothing is held between calls."""


class _GlobSearch:
    """One call of the tool."""

    def __init__(self, wanted: _GlobArguments, scope: SearchScope, seconds: float, most_files: int) -> None:
        self.program = Ripgrep(seconds)
        self._wanted = wanted
        self._scope = scope
        self._seconds = seconds
        self._most_files = most_files
        self._path, pattern = _split(wanted)
        try:
            self._pattern = PathPattern(pattern)
        except BadPathPattern as error:
            raise BadArgument(f"{shorten(wanted.pattern)} is not a pattern of paths: {error}.") from error

    def run(self) -> ToolResult:
        """Search, and return the result. Raises BadArgument."""
        result = ResultLines(_LIMIT)
        with search_errors(self._path), self._scope.open(self._path, files=False) as target:
            found, notes = self._found(target)
            for _, path in heapq.nsmallest(_LIMIT, found):
                result.add(target.shown(path))
        if len(found) > _LIMIT:
            more = f"{len(found) - _LIMIT:,} more match"
            notes.insert(0, f"the {_LIMIT} newest are shown, and {more}: narrow the pattern")
        nothing = f"No file matches {shorten(self._wanted.pattern)} in {named(self._path)}."
        return ToolResult.of_text(result.text(nothing, [*notes, *self.program.notes(_MISSING)]))

    def _found(self, target: SearchTarget) -> tuple[list[_Dated], list[str]]:
        """Return the files that match, and a note if there may be more."""
        found: list[_Dated] = []
        with closing(self.program.output(target, self._options(), self._rules())) as output:
            for number, path in enumerate(_paths(output)):
                if number == self._most_files:
                    return found, [f"stopped after looking at {number:,} files: {_MISSING}"]
                if not self._pattern.matches(path) or target.leaves_out(path):
                    continue
                if (changed := _changed(target, path)) is not None:
                    found.append((-changed, path))
        return found, []

    def _options(self) -> list[str]:
        include_ignored = bool(self._wanted.include_ignored)
        options = ["--files", *ignoring(self._scope.cwd, include_ignored=include_ignored)]
        return [*options, *only_files_named(self._pattern.names())]

    def _rules(self) -> str:
        """Return rules that keep the program to the directories at the start of the pattern."""
        rules, above = [], "/"
        for name in map(escaped, self._pattern.directories()):
            rules += [f"{above}*/", f"!{above}{name}/"]
            above += f"{name}/"
        return "\n".join(rules)


def _split(wanted: _GlobArguments) -> tuple[str | None, str]:
    """Return path and pattern; the directory at the start of an absolute pattern is the path."""
    if not wanted.pattern.startswith("/"):
        return wanted.path, wanted.pattern
    parts = PurePosixPath(wanted.pattern).parts
    fixed = next((n for n, part in enumerate(parts) if _MAGIC.search(part)), len(parts) - 1)
    return str(PurePosixPath(*parts[:fixed])), "/".join(parts[fixed:]) or "**"


def _paths(output: Iterable[bytes]) -> Iterator[str]:
    rest = b""
    for chunk in output:
        *paths, rest = (rest + chunk).split(b"\0")
        for path in paths:
            yield os.fsdecode(path.removeprefix(b"./"))


def _changed(target: SearchTarget, path: str) -> int | None:
    """Return when a file was changed last (ns since 1970); None if it is not a regular file any more."""
    with suppress(OSError):
        status = os.stat(path, dir_fd=target.descriptor, follow_symlinks=False)
        if stat.S_ISREG(status.st_mode):
            return status.st_mtime_ns
    return None
