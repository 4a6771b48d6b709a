"""From the output of ripgrep to the lines that the model reads."""

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from subagent_server.toolkit.workspace.result_lines import ResultLines
from subagent_server.toolkit.workspace.ripgrep import MOST_LINE_BYTES
from subagent_server.toolkit.workspace.search_scope import SearchTarget

OutputMode = Literal["files", "content", "count"]
_SHOWN = 500
_BEFORE_MATCH = 100
_LINE = re.compile(rb"([^\0]*+)\0(\d+)(?:-|:(\d+):)([^\n]*+)\n")
_COUNT = re.compile(rb"([^\0]*+)\0(\d+)()()\r?\n")
_BINARY_REST = re.compile(
    rb"\A\./.*: WARNING: stopped searching binary file after match \(found .*\)\n(?=\./)"
)


@dataclass(frozen=True)
class PrintedLine:
    """A line of a file, or how many of its lines match. `column` counts bytes from 1; context has none."""

    path: str
    number: int
    column: int | None
    text: bytes


def printing(mode: OutputMode, context: int, *, one_file: bool) -> list[str]:
    """Return the options for output in the form that `printed_lines` reads."""
    if mode == "count" and not one_file:
        return ["--with-filename", "--count"]
    options = ["--no-heading", "--with-filename", "--line-number", "--column", "--no-context-separator"]
    if mode == "content":
        return [*options, f"--max-columns={MOST_LINE_BYTES}", f"--context={context}"]
    return [*options, "--max-columns=1", *(["--max-count=1"] if mode == "files" else [])]


def printed_lines(output: Iterable[bytes], mode: OutputMode, *, one_file: bool) -> Iterator[PrintedLine]:
    """Yield the lines of the output; a line that a kill has cut is left out."""
    form = _COUNT if mode == "count" and not one_file else _LINE
    rest = b""
    for chunk in output:
        rest += chunk
        start = 0
        while line := form.match(rest, start):
            start = line.end()
            path = _BINARY_REST.sub(b"", line[1]).removeprefix(b"./")
            yield PrintedLine(os.fsdecode(path), int(line[2]), int(line[3]) if line[3] else None, line[4])
        rest = rest[start:]


class GrepReport(Protocol):
    """Turns lines of the output into lines of a result."""

    def take(self, line: PrintedLine) -> None:
        """Take the next line. Raises Enough."""
        ...

    def finish(self) -> None:
        """Add the lines that were held back, at the end of the output. Raises Enough."""
        ...


class FilesReport:
    """The paths of the files that match."""

    def __init__(self, target: SearchTarget, result: ResultLines) -> None:
        self._target = target
        self._result = result

    def take(self, line: PrintedLine) -> None:
        """Add the path."""
        self._result.match()
        self._result.add(self._target.shown(line.path))

    def finish(self) -> None:
        """Do nothing: no line is held back."""


class CountReport:
    """How many lines of each file match; of a single file they are counted here."""

    def __init__(self, target: SearchTarget, result: ResultLines) -> None:
        self._target = target
        self._result = result
        self._lines = 0

    def take(self, line: PrintedLine) -> None:
        """Add the count, or count the line."""
        if self._target.file is not None:
            self._lines += 1
            return
        self._result.match()
        self._result.add(f"{self._target.shown(line.path)}:{line.number}")

    def finish(self) -> None:
        """Add the count of a single file."""
        if self._lines and self._target.file is not None:
            self._result.add(f"{self._target.shown(self._target.file.name)}:{self._lines}")


class ContentReport:
    """The lines that match, with `context` lines around them."""

    def __init__(self, target: SearchTarget, result: ResultLines, context: int) -> None:
        self._target = target
        self._result = result
        self._context = context
        self._before: list[PrintedLine] = []
        self._last: PrintedLine | None = None
        self._last_match: PrintedLine | None = None

    def take(self, line: PrintedLine) -> None:
        """Add a match, after the lines before it; hold a line back that may stand before the next match."""
        match = self._last_match
        if line.column is not None:
            self._result.match()
            for earlier in [*self._before, line]:
                self._add(earlier)
            self._before, self._last_match = [], line
        elif match and match.path == line.path and line.number <= match.number + self._context:
            self._add(line)
        else:
            self._before.append(line)

    def finish(self) -> None:
        """Do nothing: lines that are held back now have no match behind them."""

    def _add(self, line: PrintedLine) -> None:
        last = self._last
        follows = last is not None and last.path == line.path and last.number + 1 == line.number
        if self._context and last is not None and not follows:
            self._result.add("--")
        self._last = line
        mark = "-" if line.column is None else ":"
        self._result.add(f"{self._target.shown(line.path)}{mark}{line.number}{mark}{_text(line)}")


def report_on(mode: OutputMode, target: SearchTarget, result: ResultLines, context: int) -> GrepReport:
    """Return the report of an output mode."""
    if mode == "content":
        return ContentReport(target, result, context)
    return FilesReport(target, result) if mode == "files" else CountReport(target, result)


def _text(line: PrintedLine) -> str:
    """Return the text of a line, of a long one the part around the match."""
    text = line.text.decode("utf-8", "replace").rstrip("\r\n")
    if len(text) <= _SHOWN:
        return text
    around = len(line.text[: (line.column or 1) - 1].decode("utf-8", "replace"))
    start = max(0, min(around - _BEFORE_MATCH, len(text) - _SHOWN))
    end = start + _SHOWN
    return f"{'…' if start else ''}{text[start:end]}{'…' if end < len(text) else ''}"
