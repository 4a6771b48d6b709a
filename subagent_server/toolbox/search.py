"""The tools `grep`, `glob` and `ls`, by ripgrep.

Its output is read as text and not as JSON, which knows no bound for a line: a file of one line would be read
into the worker whole.
"""

import fnmatch
import heapq
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby, islice
from pathlib import PurePosixPath
from typing import Any, Literal

from pydantic import Field
from pydantic.alias_generators import to_camel

from subagent_server.run.confined_path import PathInside, printable
from subagent_server.run.errors import BadArgument, shorten
from subagent_server.toolbox.ripgrep import (
    MEMORY_BYTES,
    Ripgrep,
    SearchScope,
    SearchTarget,
    escaped,
    ignoring,
)
from subagent_server.toolbox.tool import Tool, ToolResult
from subagent_server.toolbox.workspace import Arguments, definition_of, off_loop, parse_arguments

# -- patterns of paths

_MOST_ALTERNATIVES = 200
_MOST_PATTERN_CHARACTERS = 4096
_BRACES = re.compile(r"\{([^{}]*,[^{}]*)\}")
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9._-]+")
_Match = Callable[[str], re.Match[str] | None]


class PathPattern:
    """A pattern for whole relative paths: `*`, `?`, `[...]`, `{a,b}`, and `**` for directories.

    ripgrep has such patterns, but a file that one of them names is found even if an ignore file names it. So
    its options only narrow the walk, and each file is matched here: name by name, in time that is bounded by
    the product of both lengths. One regular expression for a whole path would take for ever for a few `**`.
    """

    def __init__(self, pattern: str) -> None:
        """Read `pattern`. Raises ValueError, whose text is why it cannot be used."""
        if len(pattern) > _MOST_PATTERN_CHARACTERS:
            raise ValueError(f"it has more than {_MOST_PATTERN_CHARACTERS:,} characters")
        self._alternatives = [_parts(text) for text in _expanded(pattern)]
        self._matchers: list[list[_Match | None]] = [
            [None if part == "**" else re.compile(fnmatch.translate(part)).match for part in parts]
            for parts in self._alternatives
        ]

    def matches(self, path: str) -> bool:
        """Whether a whole relative path matches."""
        names = path.split("/")
        return any(_fits(matchers, names) for matchers in self._matchers)

    def name_options(self) -> list[str]:
        """Return the options that limit a search to files whose names can match; ignore files still count.

        They are of letters, digits, `.`, `_`, `-` and `*` alone, and may let more names through.
        """
        lasts = {parts[-1] for parts in self._alternatives}
        names = {_NOT_PLAIN.sub("*", last.partition("[")[0] + "*" * ("[" in last)) for last in lasts}
        if "*" in names:
            return []
        return [*(f"--type-add=wanted:{name}" for name in sorted(names)), "--type=wanted"]


def _fits(matchers: Sequence[_Match | None], names: Sequence[str]) -> bool:
    """Whether names match one by one; a `**` takes as few as it can, and the last one more if need be."""
    part = name = 0
    behind: tuple[int, int] | None = None
    while name < len(names):
        match = matchers[part] if part < len(matchers) else lambda _: None
        if match is None:
            part += 1
            behind = (part, name)
        elif match(names[name]):
            part, name = part + 1, name + 1
        elif behind is None:
            return False
        else:
            part, name = behind[0], behind[1] + 1
            behind = (part, name)
    return not any(matchers[part:])


def _parts(pattern: str) -> list[str]:
    parts = [part for part in pattern.split("/") if part not in ("", ".")]
    if not parts:
        raise ValueError("it is empty")
    if ".." in parts:
        raise ValueError("it leads out with `..`")
    return parts


def _expanded(pattern: str) -> list[str]:
    """Return `pattern` once for each choice from its braces."""
    done: list[str] = []
    todo = [pattern]
    while todo:
        if len(done) + len(todo) > _MOST_ALTERNATIVES:
            raise ValueError(f"its braces make more than {_MOST_ALTERNATIVES} patterns")
        text = todo.pop()
        braces = _BRACES.search(text)
        if braces is None:
            done.append(text)
        else:
            start, end = text[: braces.start()], text[braces.end() :]
            todo += [f"{start}{choice}{end}" for choice in braces[1].split(",")]
    return done


# -- the tools

_MOST_CHARACTERS = 30_000
_PATH = "Where to search: relative to the working directory (the default)."
_INCLUDE_IGNORED = "Also search what .gitignore, .ignore and .rgignore files name; false."


class _Enough(Exception):
    """The result is as long as it may be; the text tells the model."""


class _Result:
    """The lines of a result: up to `matches` matches, and 30,000 characters."""

    def __init__(self, matches: int) -> None:
        self.notes: list[str] = []
        self._lines: list[str] = []
        self._limit = self._left = matches
        self._room = _MOST_CHARACTERS

    def match(self) -> None:
        """Count one more match, before its line is added. Raises _Enough."""
        if self._left == 0:
            raise _Enough(f"only the first {self._limit} are shown: raise `limit` or narrow the search")
        self._left -= 1

    def add(self, line: str) -> None:
        """Add a line. Raises _Enough."""
        self._room -= len(line) + 1
        if self._room < 0:
            raise _Enough("cut here because the result is long: narrow the search")
        self._lines.append(line)

    def for_model(self, nothing: str, path: str | None) -> ToolResult:
        """Return the lines, or that there is `nothing` in `path`, and the notes."""
        where = "the working directory" if path in (None, "", ".") else path
        lines = self._lines or [f"{nothing} in {where}."]
        return ToolResult.of_text("\n".join([*lines, *(f"[{note}]" for note in self.notes)]))


class _SearchTool(Tool):
    """What the searches have in common: each call runs ripgrep once, in a thread, for about `seconds`."""

    _default_seconds: float
    _wanted: type[Arguments]
    _description: str

    def __init__(
        self, scope: SearchScope, *, seconds: float | None = None, memory_bytes: int = MEMORY_BYTES
    ) -> None:
        self._scope = scope
        self._seconds = self._default_seconds if seconds is None else seconds
        self._memory_bytes = memory_bytes

    def definition(self) -> dict[str, Any]:
        """Return the entry of `tools`."""
        return definition_of(self.name, self._description, self._wanted)

    async def call(self, arguments: dict[str, Any]) -> ToolResult:
        """Search; to find nothing is a result and not a failure."""
        rg = Ripgrep(self._seconds, self._memory_bytes)
        wanted = parse_arguments(self._wanted, arguments)
        return await off_loop(partial(self._search, wanted, rg), interrupt=rg.cancel)

    def _search(self, wanted: Any, rg: Ripgrep) -> ToolResult:
        """Search in a thread. Raises BadArgument."""
        raise NotImplementedError


# -- grep

_MOST_EXPRESSION_BYTES = 100_000
_WRAPPER = len("(?:")
_SYNTAX = re.compile(r"regex parse error:\n {4}(.*)\n {4}( *)\^.*\nerror: (.*)")
_LINE_END = "each line is searched by itself, so a pattern cannot hold a line end"
_BINARY_HEAD = 1 << 16
"""A file with a NUL byte among so many is binary from its start."""
_MOST_LINE_BYTES = 1_000_000
"""A longer line is found, but its text is not printed."""
_SHOWN = 500
_BEFORE_MATCH = 100
_LINE = re.compile(rb"([^\0]*+)\0(\d+)(?:-|:(\d+):)([^\n]*+)\n")
_BINARY_REST = re.compile(
    rb"\A\./.*: WARNING: stopped searching binary file after match \(found .*\)\n(?=\./)"
)
_OutputMode = Literal["files", "content", "count"]


class _GrepArguments(Arguments, alias_generator=to_camel):
    pattern: str = Field(min_length=1, description="The regular expression.")
    path: str | None = Field(default=None, description=f"{_PATH} A directory or a file.")
    glob: str | None = Field(default=None, description="Only files such as *.py or src/**/*.{ts,tsx}.")
    output_mode: _OutputMode | None = Field(
        default=None, description="Paths of files (the default), matching lines with numbers, or counts."
    )
    context: int | None = Field(default=None, ge=0, le=100, description="Lines around matches, for content.")
    ignore_case: bool | None = None
    include_ignored: bool | None = Field(default=None, description=_INCLUDE_IGNORED)
    limit: int | None = Field(default=None, ge=1, le=10_000, description="Most files or matching lines; 200.")


@dataclass(frozen=True)
class _PrintedLine:
    """A line of a file. `column` counts bytes from 1; lines around a match have none."""

    path: str
    number: int
    column: int | None
    text: bytes


class GrepTool(_SearchTool):
    """Finds lines in the files of `scope`, for at most about `seconds` and with so much memory."""

    name = "grep"
    _default_seconds = 60.0
    _wanted = _GrepArguments
    _description = (
        "Search text files for lines that match a regular expression (ripgrep syntax, one line at a "
        "time; no lookaround or backreferences; escape a literal { as \\{). Hidden files are searched; "
        ".git, binary files, what ignore files (such as .gitignore) name and what symbolic links lead to "
        "are not. Results are relative to the working directory."
    )

    def _search(self, wanted: _GrepArguments, rg: Ripgrep) -> ToolResult:
        if (why := _fault_of(wanted.pattern)) is not None:
            raise _unsearchable(wanted, why)
        try:
            files = PathPattern(wanted.glob) if wanted.glob else None
        except ValueError as error:
            raise _unsearchable(wanted, str(error)) from error
        result = _Result(wanted.limit or 200)
        with self._scope.open(wanted.path, files=True) as target:
            if target.file is not None and _is_binary(target.file):
                result.notes.append(f"{printable(target.file.name)} is a binary file, which is not searched")
            else:
                self._report(wanted, target, files, rg, result)
        return result.for_model(f"No match for {shorten(wanted.pattern)}", wanted.path)

    def _report(
        self,
        wanted: _GrepArguments,
        target: SearchTarget,
        files: PathPattern | None,
        rg: Ripgrep,
        result: _Result,
    ) -> None:
        """Add what is found to the result. Raises BadArgument."""
        try:
            with closing(rg.output(target, self._options(wanted, target, files))) as output:
                lines = (line for line in _printed(output) if _counts(line.path, wanted.glob, files, target))
                if wanted.output_mode == "content":
                    _add_content(lines, target, result, wanted.context or 0)
                else:
                    for path, found in groupby(lines, key=lambda line: line.path):
                        result.match()
                        count = f":{sum(1 for _ in found)}" if wanted.output_mode == "count" else ""
                        result.add(target.shown(path) + count)
        except _Enough as enough:
            result.notes.append(str(enough))
        if (refusal := rg.refusal) is not None:
            raise _unsearchable(wanted, _reason_of(refusal))
        result.notes += rg.notes("use a simpler pattern or narrow the path")

    def _options(self, wanted: _GrepArguments, target: SearchTarget, files: PathPattern | None) -> list[str]:
        """Return the options for ripgrep. A file is found by its name: no link is read instead of it."""
        options = [
            f"--regexp={wanted.pattern}",
            "--ignore-case" if wanted.ignore_case else "--case-sensitive",
            *("--crlf", "--sort=path"),
            *("--no-heading", "--with-filename", "--line-number", "--column", "--no-context-separator"),
        ]
        if wanted.output_mode == "content":
            options += [f"--max-columns={_MOST_LINE_BYTES}", f"--context={wanted.context or 0}"]
        else:  # the text of a line is not wanted
            options += ["--max-columns=1", *([] if wanted.output_mode == "count" else ["--max-count=1"])]
        if target.file is not None:
            return [*options, "--no-ignore", "--max-depth=1", f"--glob=/{escaped(target.file.name)}"]
        options += ignoring(self._scope.cwd, include_ignored=wanted.include_ignored)
        return options if files is None else [*options, *files.name_options()]


def _counts(path: str, glob: str | None, files: PathPattern | None, target: SearchTarget) -> bool:
    """Whether a found file counts; a `glob` without a `/` is for names, else for paths."""
    if target.file is not None:
        return True
    if target.leaves_out(path):
        return False
    if files is None or glob is None:
        return True
    if "/" not in glob:
        return files.matches(path.rpartition("/")[2])
    return files.matches(path) or files.matches("/".join((*target.parts, path)))


def _printed(output: Iterable[bytes]) -> Iterator[_PrintedLine]:
    """Yield the lines of the output; a line that a kill has cut is left out."""
    rest = b""
    for chunk in output:
        rest += chunk
        start = 0
        while line := _LINE.match(rest, start):
            start = line.end()
            path = os.fsdecode(_BINARY_REST.sub(b"", line[1]).removeprefix(b"./"))
            yield _PrintedLine(path, int(line[2]), int(line[3]) if line[3] else None, line[4])
        rest = rest[start:]


def _add_content(lines: Iterable[_PrintedLine], target: SearchTarget, result: _Result, context: int) -> None:
    """Add the lines that match, with the lines around them. Raises _Enough."""
    held: list[_PrintedLine] = []  # they may belong before the next match, which may be one too many
    last = match = None
    for line in lines:
        if line.column is not None:
            result.match()
            match = line
        elif match is None or match.path != line.path or line.number > match.number + context:
            held.append(line)
            continue
        for each in [*held, line]:
            if context and last is not None and (each.path, each.number) != (last.path, last.number + 1):
                result.add("--")
            last = each
            mark = "-" if each.column is None else ":"
            result.add(f"{target.shown(each.path)}{mark}{each.number}{mark}{_text(each)}")
        held = []


def _text(line: _PrintedLine) -> str:
    """Return the text of a line, of a long one the part around the match."""
    text = line.text.decode("utf-8", "replace").rstrip("\r\n")
    if len(text) <= _SHOWN:
        return text
    around = len(line.text[: (line.column or 1) - 1].decode("utf-8", "replace"))
    start = max(0, min(around - _BEFORE_MATCH, len(text) - _SHOWN))
    end = start + _SHOWN
    return f"{'…' if start else ''}{text[start:end]}{'…' if end < len(text) else ''}"


def _is_binary(file: PathInside) -> bool:
    """Whether ripgrep would skip a file as binary; a UTF-16 mark makes it text. Raises OSError."""
    with os.fdopen(file.open(os.O_RDONLY), "rb") as content:
        if not stat.S_ISREG(os.fstat(content.fileno()).st_mode):
            return False
        head = content.read(_BINARY_HEAD)
    return b"\0" in head and head[:2] not in (b"\xff\xfe", b"\xfe\xff")


def _fault_of(pattern: str) -> str | None:
    """Return the fault of a pattern that ripgrep cannot take, or would report at another position."""
    if "\0" in pattern:
        return "it holds a NUL character, and files with such are binary"
    if "\n" in pattern:
        return _LINE_END
    if len(pattern.encode()) > _MOST_EXPRESSION_BYTES:
        return f"it has more than {_MOST_EXPRESSION_BYTES:,} bytes"
    if (len(pattern) - len(pattern.rstrip("\\"))) % 2:
        return f"nothing follows the backslash at its end (at character {len(pattern)})"
    return None


def _reason_of(refusal: str) -> str:
    """Return why ripgrep refused a pattern; `refusal` is its output on stderr."""
    if syntax := _SYNTAX.search(refusal):
        position = len(syntax[2]) - _WRAPPER  # ripgrep puts the pattern into a group, and may mean that
        return f"{syntax[3]} (at character {position + 1})" if position >= 0 else syntax[3]
    if "is not allowed in a regex" in refusal:
        return _LINE_END
    if "exceeds size limit" in refusal:
        return "it is too large"
    return refusal.strip().partition("\n")[0].removeprefix("rg: ").rstrip(".")


def _unsearchable(wanted: _GrepArguments, why: str) -> BadArgument:
    return BadArgument(f"{shorten(wanted.pattern)} cannot be searched for: {why}.")


# -- glob

_MOST_FILES = 1_000_000
_MOST_FOUND = 100
_FILES_MISSING = "files may be missing; narrow the pattern or give a path"
_MAGIC = re.compile(r"[*?\[{]")


class _GlobArguments(Arguments, alias_generator=to_camel):
    pattern: str = Field(min_length=1, description="Such as **/*.py.")
    path: str | None = Field(default=None, description=_PATH)
    include_ignored: bool | None = Field(default=None, description=_INCLUDE_IGNORED)


class GlobTool(_SearchTool):
    """Finds files in `scope` by their path, among at most `most_files`, for at most about `seconds`."""

    name = "glob"
    _default_seconds = 30.0
    _wanted = _GlobArguments
    _description = (
        "Find files by a pattern of their path, newest first, at most 100. * and ? stay within a name, "
        "** crosses directories, {a,b} chooses: src/**/*.{ts,tsx}. Hidden files are found; .git, "
        "symbolic links and what ignore files (such as .gitignore) name are left out. Results are "
        "relative to the working directory."
    )

    def __init__(
        self, scope: SearchScope, *, seconds: float | None = None, most_files: int = _MOST_FILES
    ) -> None:
        super().__init__(scope, seconds=seconds)
        self._most_files = most_files

    def _search(self, wanted: _GlobArguments, rg: Ripgrep) -> ToolResult:
        path, text = _path_and_pattern(wanted, self._scope.cwd.parts)
        try:
            pattern = PathPattern(text)
        except ValueError as error:
            raise BadArgument(f"{shorten(wanted.pattern)} is not a pattern of paths: {error}.") from error
        options = ["--files", *ignoring(self._scope.cwd, include_ignored=wanted.include_ignored)]
        result, found = _Result(_MOST_FOUND), list[tuple[int, str]]()
        with (
            self._scope.open(path, files=False) as target,
            closing(rg.output(target, [*options, *pattern.name_options()])) as output,
        ):
            for number, file in enumerate(_printed_paths(output)):
                if number == self._most_files:
                    result.notes.append(f"stopped after looking at {number:,} files: {_FILES_MISSING}")
                    break
                if pattern.matches(file) and not target.leaves_out(file):
                    found += _dated(target, file)
            for _, file in heapq.nsmallest(_MOST_FOUND, found):
                result.add(target.shown(file))
        if len(found) > _MOST_FOUND:
            more = f"{len(found) - _MOST_FOUND:,} more match"
            result.notes.insert(0, f"the {_MOST_FOUND} newest are shown, and {more}: narrow the pattern")
        result.notes += rg.notes(_FILES_MISSING)
        return result.for_model(f"No file matches {shorten(wanted.pattern)}", path)


def _path_and_pattern(wanted: _GlobArguments, cwd: tuple[str, ...]) -> tuple[str | None, str]:
    """Return path and pattern; the directory at the start of an absolute pattern is the path.

    The parts of `cwd` are no patterns, whatever they look like.
    """
    if not wanted.pattern.startswith("/"):
        return wanted.path, wanted.pattern
    parts = PurePosixPath(wanted.pattern).parts
    known = len(cwd) if parts[: len(cwd)] == cwd else 0
    rest = enumerate(parts[known:], known)
    fixed = next((n for n, part in rest if _MAGIC.search(part)), max(known, len(parts) - 1))
    return str(PurePosixPath(*parts[:fixed])), "/".join(parts[fixed:]) or "**"


def _printed_paths(output: Iterable[bytes]) -> Iterator[str]:
    rest = b""
    for chunk in output:
        *paths, rest = (rest + chunk).split(b"\0")
        for path in paths:
            yield os.fsdecode(path.removeprefix(b"./"))


def _dated(target: SearchTarget, path: str) -> list[tuple[int, str]]:
    """Return a file for sorting, newest first; nothing if it is not a regular file any more."""
    with suppress(OSError):
        status = os.stat(path, dir_fd=target.descriptor, follow_symlinks=False)
        if stat.S_ISREG(status.st_mode):
            return [(-status.st_mtime_ns, path)]
    return []


# -- ls

_MOST_ENTRIES = 1_000
_MOST_READ = 100_000


class _ListArguments(Arguments, alias_generator=to_camel):
    path: str | None = Field(default=None, description=_PATH.replace("Where to search", "The directory"))
    ignore: list[str] = Field(
        default_factory=list, max_length=50, description="Patterns of names to leave out, such as *.pyc."
    )


class ListTool(_SearchTool):
    """Lists directories in `scope`, without those that no search enters."""

    name = "ls"
    _default_seconds = 10.0
    _wanted = _ListArguments
    _description = (
        "List the entries of one directory, by name, directories with / behind them. Hidden entries are "
        "listed, ignored ones too; .git is left out."
    )

    def _search(self, wanted: _ListArguments, rg: Ripgrep) -> ToolResult:
        try:
            patterns = [PathPattern(pattern) for pattern in wanted.ignore]
        except ValueError as error:
            raise BadArgument(f"`ignore` has what is not a pattern of names: {error}.") from error
        result = _Result(_MOST_ENTRIES)
        with self._scope.open(wanted.path, files=False) as target:
            entries = _entries(target, patterns)
            try:
                for name in sorted(entries)[:_MOST_ENTRIES]:
                    result.add(target.shown(name) + ("/" if entries[name] else ""))
            except _Enough as enough:
                result.notes.append(str(enough))
        if len(entries) > _MOST_ENTRIES:
            result.notes.append(f"{len(entries) - _MOST_ENTRIES:,} more entries")
        return result.for_model("There is nothing to list", wanted.path)


def _entries(target: SearchTarget, patterns: Sequence[PathPattern]) -> dict[str, bool]:
    """Return the names of files and directories (True), without those that no search enters."""
    found: dict[str, bool] = {}
    with os.scandir(target.descriptor) as entries:
        for entry in islice(entries, _MOST_READ):
            mode = 0
            with suppress(OSError):
                mode = entry.stat(follow_symlinks=False).st_mode
            if any(pattern.matches(entry.name) for pattern in patterns):
                continue
            if stat.S_ISREG(mode):
                found[entry.name] = False
            elif stat.S_ISDIR(mode) and not target.never_enters(entry.name):
                found[entry.name] = True
    return found
