"""The tool `ls`: the entries of one directory, less what searches leave out."""

import os
import stat
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import islice
from typing import Any

from pydantic import Field
from pydantic.alias_generators import to_camel

from subagent_server.domain.errors import BadArgument
from subagent_server.toolkit.tool import ToolResult
from subagent_server.toolkit.workspace.arguments import Arguments, parse_arguments
from subagent_server.toolkit.workspace.off_loop import off_loop
from subagent_server.toolkit.workspace.path_pattern import BadPathPattern, PathPattern
from subagent_server.toolkit.workspace.result_lines import Enough, ResultLines
from subagent_server.toolkit.workspace.ripgrep import Ripgrep, ignoring
from subagent_server.toolkit.workspace.search_arguments import INCLUDE_IGNORED, PATH, named, search_errors
from subagent_server.toolkit.workspace.search_scope import LEFT_OUT, SearchScope, SearchTarget

_MOST_ENTRIES = 1_000
_MOST_READ = 100_000
_MISSING = "directories may be missing; give one below"


class _ListArguments(Arguments, alias_generator=to_camel):
    path: str | None = None
    ignore: list[str] = Field(default_factory=list, max_length=50)
    include_ignored: bool | None = None


_DEFINITION: dict[str, Any] = {
    "description": (
        "List the entries of one directory, by name, directories with / behind them. Hidden entries are "
        "listed; .git and what ignore files (such as .gitignore) name are left out."
    ),
    "input_schema": {
        "type": "object",
        "properties": {
            "path": PATH | {"description": "The directory: relative to the working directory (the default)."},
            "ignore": {
                "type": "array",
                "items": {"type": "string"},
                "description": "Patterns of names to leave out, such as *.pyc.",
            },
            "includeIgnored": INCLUDE_IGNORED
            | {"description": "Also list what .gitignore, .ignore and .rgignore files name; false."},
        },
        "additionalProperties": False,
    },
}


class ListTool:
    """Lists directories in `scope`, each for at most about `seconds`."""

    name = "ls"
    sequential = False

    def __init__(self, scope: SearchScope, *, seconds: float = 10.0) -> None:
        self._scope = scope
        self._seconds = seconds

    def definition(self) -> dict[str, Any]:
        """Return the entry of `tools`."""
        return {"name": self.name, **_DEFINITION}

    async def call(self, arguments: dict[str, Any]) -> ToolResult:
        """List a directory; an empty one is a result and not a failure."""
        try:
            wanted = parse_arguments(_ListArguments, arguments)
            listing = _Listing(wanted, self._scope, self._seconds)
            return await off_loop(listing.run, interrupt=listing.program.cancel)
        except BadArgument as error:
            return ToolResult.failure(error.sentence)

    async def aclose(self) -> None:
        """Nothing is held between calls."""


class _Listing:
    """One call of the tool."""

    def __init__(self, wanted: _ListArguments, scope: SearchScope, seconds: float) -> None:
        self.program = Ripgrep(seconds)
        self._wanted = wanted
        self._scope = scope
        try:
            self._patterns = [PathPattern(pattern) for pattern in wanted.ignore]
        except BadPathPattern as error:
            raise BadArgument(f"`ignore` has what is not a pattern of names: {error}.") from error

    def run(self) -> ToolResult:
        """List, and return the result. Raises BadArgument."""
        result, notes = ResultLines(_MOST_ENTRIES), list[str]()
        with search_errors(self._wanted.path), self._scope.open(self._wanted.path, files=False) as target:
            entries = self._entries(target)
            for name in sorted(entries)[:_MOST_ENTRIES]:
                try:
                    result.add(target.shown(name) + ("/" if entries[name] else ""))
                except Enough as enough:
                    notes.append(str(enough))
                    break
        if len(entries) > _MOST_ENTRIES:
            notes.append(f"{len(entries) - _MOST_ENTRIES:,} more entries")
        nothing = f"There is nothing to list in {named(self._wanted.path)}."
        return ToolResult.of_text(result.text(nothing, [*notes, *self.program.notes(_MISSING)]))

    def _entries(self, target: SearchTarget) -> dict[str, bool]:
        """Return the names to list; True for a directory."""
        there = self._there(target)
        if self._wanted.include_ignored:
            return there
        empty = {name for name, is_directory in there.items() if is_directory and _is_empty(target, name)}
        left = there.keys() - empty
        kept = set(empty)
        with closing(self.program.output(target, ["--files", *self._ignoring()])) as output:
            for name in _first_names(output):
                if name in left:
                    left -= {name}
                    kept.add(name)
                if not left:
                    break
        return {name: is_directory for name, is_directory in there.items() if name in kept}

    def _ignoring(self) -> list[str]:
        return ignoring(self._scope.cwd, include_ignored=False)

    def _there(self, target: SearchTarget) -> dict[str, bool]:
        """Return the regular files and the directories, without those that no search enters."""
        found: dict[str, bool] = {}
        with os.scandir(target.descriptor) as entries:
            for entry in islice(entries, _MOST_READ):
                mode = 0
                with suppress(OSError):
                    mode = entry.stat(follow_symlinks=False).st_mode
                if any(pattern.matches(entry.name) for pattern in self._patterns):
                    continue
                if stat.S_ISREG(mode):
                    found[entry.name] = False
                elif stat.S_ISDIR(mode) and not self._is_left_out(target, entry.name):
                    found[entry.name] = True
        return found

    def _is_left_out(self, target: SearchTarget, name: str) -> bool:
        is_run = self._scope.holds_runs((*target.parts, name))
        return name in LEFT_OUT or is_run


def _is_empty(target: SearchTarget, name: str) -> bool:
    with suppress(OSError):
        descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=target.descriptor)
        try:
            with os.scandir(descriptor) as entries:
                return next(entries, None) is None
        finally:
            os.close(descriptor)
    return False


def _first_names(output: Iterator[bytes]) -> Iterator[str]:
    """Yield the first name of each path that the program has found."""
    rest = b""
    for chunk in output:
        *paths, rest = (rest + chunk).split(b"\0")
        for path in paths:
            yield os.fsdecode(path.removeprefix(b"./").partition(b"/")[0])
