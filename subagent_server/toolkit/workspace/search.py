"""The tools `grep` and `glob`: read-only, any number at once, never outside the working directory."""

import re
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from pydantic import Field
from pydantic.alias_generators import to_camel

from subagent_server.domain.errors import BadArgument, shorten
from subagent_server.toolkit.tool import ToolResult
from subagent_server.toolkit.workspace.arguments import Arguments, parse_arguments
from subagent_server.toolkit.workspace.paths import Workspace
from subagent_server.toolkit.workspace.searcher import Found, search

_CHARACTERS = 30_000
_MOST_ENTRIES = 1_000_000
_GLOB_LIMIT = 100
_GLOB_MAGIC = re.compile(r"[*?\[{]")

_PATH = {"type": "string", "description": "Where to search: relative to the working directory (the default)."}


class _GrepArguments(Arguments, alias_generator=to_camel):
    pattern: str = Field(min_length=1)
    path: str | None = None
    glob: str | None = None
    output_mode: Literal["files", "content", "count"] | None = None
    context: int | None = Field(default=None, ge=0, le=100)
    ignore_case: bool | None = None
    limit: int | None = Field(default=None, ge=1, le=10_000)


class _GlobArguments(Arguments):
    pattern: str = Field(min_length=1)
    path: str | None = None


_GREP: dict[str, Any] = {
    "description": (
        "Search text files for lines that match a regular expression (Python syntax, one line at a time). "
        "Hidden files are searched; .git, binary files and what symbolic links lead to are not. Results are "
        "relative to the working directory."
    ),
    "input_schema": {
        "type": "object",
        "properties": {
            "pattern": {"type": "string", "description": "The regular expression."},
            "path": {**_PATH, "description": f"{_PATH['description']} A directory or a file."},
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
            "limit": {"type": "integer", "minimum": 1, "description": "Most files or matching lines; 200."},
        },
        "required": ["pattern"],
        "additionalProperties": False,
    },
}
_GLOB: dict[str, Any] = {
    "description": (
        "Find files by a pattern of their path, newest first, at most 100. * and ? stay within a name, ** "
        "crosses directories, {a,b} chooses: src/**/*.{ts,tsx}. What is in .git is left out. Results are "
        "relative to the working directory."
    ),
    "input_schema": {
        "type": "object",
        "properties": {"pattern": {"type": "string", "description": "Such as **/*.py."}, "path": _PATH},
        "required": ["pattern"],
        "additionalProperties": False,
    },
}


class GrepTool:
    """Finds lines in files below `cwd`, for at most about `seconds`."""

    name = "grep"
    sequential = False

    def __init__(self, *, cwd: Path, seconds: float = 60.0) -> None:
        self._workspace = Workspace(cwd)
        self._seconds = seconds

    def definition(self) -> dict[str, Any]:
        """Return the entry of `tools`."""
        return {"name": self.name, **_GREP}

    async def call(self, arguments: dict[str, Any]) -> ToolResult:
        """Search; no match is a result and not a failure."""
        try:
            wanted = parse_arguments(_GrepArguments, arguments)
            request = {
                "tool": "grep",
                "pattern": wanted.pattern,
                "glob": wanted.glob,
                "outputMode": wanted.output_mode or "files",
                "context": wanted.context or 0,
                "ignoreCase": bool(wanted.ignore_case),
                "limit": wanted.limit or 200,
            }
            found = await _search(self._workspace, wanted.path, request, self._seconds)
        except BadArgument as error:
            return ToolResult.failure(error.sentence)
        if found.refused is not None:
            return ToolResult.failure(f"{shorten(wanted.pattern)} cannot be searched for: {found.refused}.")
        return _result(found, f"No match for {shorten(wanted.pattern)} in {_called(wanted.path)}.")

    async def aclose(self) -> None:
        """Nothing is held between calls."""


class GlobTool:
    """Finds files below `cwd` by their path, visiting at most `most_entries` for at most about `seconds`."""

    name = "glob"
    sequential = False

    def __init__(self, *, cwd: Path, seconds: float = 30.0, most_entries: int = _MOST_ENTRIES) -> None:
        self._workspace = Workspace(cwd)
        self._seconds = seconds
        self._most_entries = most_entries

    def definition(self) -> dict[str, Any]:
        """Return the entry of `tools`."""
        return {"name": self.name, **_GLOB}

    async def call(self, arguments: dict[str, Any]) -> ToolResult:
        """Find files; none is a result and not a failure."""
        try:
            wanted = parse_arguments(_GlobArguments, arguments)
            path, pattern = _split(wanted)
            request = {
                "tool": "glob",
                "pattern": pattern,
                "limit": _GLOB_LIMIT,
                "mostEntries": self._most_entries,
            }
            found = await _search(self._workspace, path, request, self._seconds)
        except BadArgument as error:
            return ToolResult.failure(error.sentence)
        if found.refused is not None:
            return ToolResult.failure(f"{shorten(wanted.pattern)} is no pattern of paths: {found.refused}.")
        return _result(found, f"No file matches {shorten(wanted.pattern)} in {_called(path)}.")

    async def aclose(self) -> None:
        """Nothing is held between calls."""


async def _search(workspace: Workspace, path: str | None, request: dict[str, Any], seconds: float) -> Found:
    request = {"characters": _CHARACTERS, "mostEntries": 100 * _MOST_ENTRIES, **request}
    try:
        return await search(workspace, path or ".", request, seconds=seconds)
    except OSError as error:
        raise BadArgument(
            f"{shorten(path or '.')} could not be searched ({error.strerror or error}): use another path."
        ) from error


def _split(wanted: _GlobArguments) -> tuple[str | None, str]:
    """Return path and pattern; the directory at the start of an absolute pattern is the path."""
    if not wanted.pattern.startswith("/"):
        return wanted.path, wanted.pattern
    parts = PurePosixPath(wanted.pattern).parts
    fixed = next((n for n, part in enumerate(parts) if _GLOB_MAGIC.search(part)), len(parts) - 1)
    return str(PurePosixPath(*parts[:fixed])), "/".join(parts[fixed:]) or "**"


def _called(path: str | None) -> str:
    return "the working directory" if path in (None, "", ".") else str(path)


def _result(found: Found, nothing: str) -> ToolResult:
    lines = found.lines or [nothing]
    return ToolResult.of_text("\n".join([*lines, *(f"[{note}]" for note in found.notes)]))
