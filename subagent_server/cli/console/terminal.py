"""What a command writes: exit codes, streams, and text that is escaped, cut to a width and set in tables.

Labels, questions, results and names come from models and files. Characters that move the cursor, colour the
screen or reverse the line are shown as escapes (SPEC section 13).
"""

import json
import os
import re
import select
import shutil
import sys
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from decimal import Decimal
from enum import IntEnum
from typing import Any, NamedTuple, TextIO

from subagent_server.run.errors import (
    OTHER_SPACES,
    BadArgument,
    CallerError,
    ForeignRoot,
    HostError,
    InvalidRunId,
    RunError,
    SubagentError,
    UnknownAgent,
    UnknownRun,
    visible,
    with_commands,
)
from subagent_server.run.records import Usage
from subagent_server.run.states import TOKENS, Status, dollars, least_mark

# -- The exit codes of the command (SPEC section 11), and the exceptions that end a verb early.


class ExitCode(IntEnum):
    """The exit codes of every verb."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNKNOWN = 3
    STOPPED = 4
    NEEDS_ANSWER = 5
    ENVIRONMENT = 6
    TIMED_OUT = 124
    INTERRUPTED = 130


EXIT_CODES: dict[ExitCode, str] = {
    ExitCode.OK: "ok",
    ExitCode.FAILED: "the run failed, or a check found something",
    ExitCode.USAGE: "wrong usage, or refused",
    ExitCode.UNKNOWN: "no such run or agent",
    ExitCode.STOPPED: "the run was stopped",
    ExitCode.NEEDS_ANSWER: "a question waits for an answer",
    ExitCode.ENVIRONMENT: "the machine: disk, lock, process",
    ExitCode.TIMED_OUT: "the time was over (the run continues, unless --stop was given)",
    ExitCode.INTERRUPTED: "Ctrl-C (which ends the watching, never the run)",
}
"""What each code means, for `--help` and docs/cli.md."""


class EarlyExit(Exception):
    """Ends the verb with this exit code and one sentence for people with the reason."""

    def __init__(self, code: ExitCode, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code
        self.sentence = sentence


_BY_FAMILY: tuple[tuple[type[SubagentError], ExitCode], ...] = (
    (UnknownRun, ExitCode.UNKNOWN),
    (InvalidRunId, ExitCode.UNKNOWN),
    (UnknownAgent, ExitCode.UNKNOWN),
    (ForeignRoot, ExitCode.ENVIRONMENT),
    (CallerError, ExitCode.USAGE),
    (RunError, ExitCode.FAILED),
    (HostError, ExitCode.ENVIRONMENT),
)
"""The first match counts. A malformed run id cannot name a run, so it is unknown too."""


def exit_of_error(error: SubagentError) -> ExitCode:
    """Return the exit code of an error, by its family."""
    return next((code for kind, code in _BY_FAMILY if isinstance(error, kind)), ExitCode.ENVIRONMENT)


class OutputClosed(Exception):
    """The reader of the output has gone (`subagent ls | head -1`), so the command ends."""


# -- Print: data to stdout, remarks to stderr. If the reader of stdout has gone, the command ends quietly.


def prepare_streams() -> None:
    """Write characters that the encoding of the terminal lacks as escapes, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def out(text: str) -> None:
    """Print data to stdout.

    Raises:
        OutputClosed: the reader has gone.
        EarlyExit: it cannot be written.
    """
    _write(sys.stdout, f"{text}\n")


def err(text: str, *, is_escaped: bool = False) -> None:
    """Print text for people to stderr, plain: names of files may hold escapes. Raises as `out` does.

    What `is_escaped` already is printed as it is, with its colours.
    """
    _write(sys.stderr, f"{text}\n" if is_escaped else visible(f"{text}\n", "\n"))


def out_json(value: Any, *, indent: int | None = 1) -> None:
    """Print one JSON value; with `indent` None on one line. Raises as `out` does."""
    out(json_text(value, indent=indent))


def json_text(value: Any, *, indent: int | None) -> str:
    """Return `value` as JSON that is safe on a terminal: characters that do not print become JSON escapes."""
    text = json.dumps(value, ensure_ascii=not _speaks_unicode(), indent=indent)
    if text.replace("\n", "").isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def is_terminal(stream: TextIO | None) -> bool:
    """Whether the stream is a terminal."""
    return stream is not None and stream.isatty()


def has_person() -> bool:
    """Whether a person can read the question (stderr) and answer it (stdin)."""
    return is_terminal(sys.stdin) and is_terminal(sys.stderr)


def reader_is_gone() -> bool:
    """Whether the reader of stdout has gone, even before anything was written."""
    poller = select.poll()
    try:
        poller.register(sys.stdout.fileno(), 0)
    except (AttributeError, OSError, ValueError):
        return False  # stdout is closed or not a file: there was no reader
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poller.poll(0))


def _speaks_unicode() -> bool:
    return sys.stdout is not None and (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


def _write(stream: TextIO | None, text: str) -> None:
    if stream is None:  # started with the descriptor closed
        return
    try:
        stream.write(text)
        stream.flush()
    except OSError as error:
        _point_nowhere(stream)
        raise output_failed(error) from error


def output_failed(error: OSError) -> OutputClosed | EarlyExit:
    """Return how a verb ends whose output was not taken."""
    if isinstance(error, BrokenPipeError):
        return OutputClosed()
    why = f"the output could not be written ({error.strerror}): free space, or name another file."
    return EarlyExit(ExitCode.ENVIRONMENT, why)


def _point_nowhere(stream: TextIO) -> None:
    """Point the stream to /dev/null, or the interpreter reports its unwritten rest at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


# -- The colours of the terminal, and whether a stream has colours at all.


_COLOURS = {
    "bold": "1",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
    "grey": "2",  # faint: bright black is the background of some themes
}
"""Those of the theme, which the person has chosen to be read on the background."""
PLAIN = "\x1b[0m"
COLOUR_CODE = re.compile(r"(\x1b\[[0-9;]*m)")


def coloured(text: str, colour: str | None, stream: TextIO | None = None) -> str:
    """Return `text` in a colour if the stream, which is stdout by default, has colours."""
    if not text or colour is None or not has_colours(stream):
        return text
    return f"\x1b[{_COLOURS[colour]}m{text}{PLAIN}"


def has_colours(stream: TextIO | None = None) -> bool:
    """Whether the stream, stdout by default, is a terminal with colours and NO_COLOR is not set.

    https://no-color.org: any non-empty value of NO_COLOR switches colours off.
    """
    plain = os.environ.get("NO_COLOR") or is_dumb()
    return not plain and is_terminal(sys.stdout if stream is None else stream)


def without_colours(line: str) -> str:
    """Return a line that may have colours without them."""
    return COLOUR_CODE.sub("", line)


GAP = "  "
_NAMES = 10
"""How wide the names of facts are."""
_LEAST_PROSE = 20
UNKNOWN = "-"
"""Shown for a number that is not known."""


class Look(NamedTuple):
    """How a status is shown: a mark and a word carry the meaning, the colour only helps."""

    mark: str
    word: str
    colour: str

    @property
    def text(self) -> str:
        """The mark and the word."""
        return f"{self.mark} {self.word}"


_LOOKS = {
    Status.READY: Look("○", "ready", "grey"),
    Status.RUNNING: Look("●", "running", "blue"),
    Status.WAITING: Look("?", "needs you", "yellow"),
    Status.REPLIED: Look("●", "answered", "blue"),
    Status.COMPLETED: Look("✔", "completed", "green"),
    Status.FAILED: Look("✘", "failed", "red"),
    Status.STOPPED: Look("■", "stopped", "grey"),
}
UNREADABLE = Look("!", "unreadable", "red")
_ELSEWHERE = Look("~", "unknown", "grey")
_STOPPING = Look("■", "stopping", "grey")


def look_of(status: Status | None, pending_questions: int, live: bool | None) -> Look:
    """Return how a run is shown.

    An open question comes before the status. A run of another host that has not ended is `unknown` here.
    """
    if status is None:
        return UNREADABLE
    if pending_questions:
        return _LOOKS[Status.WAITING]
    if live is None and not status.is_terminal:
        return _ELSEWHERE
    if live and status is Status.STOPPED:
        return _STOPPING
    return _LOOKS[status]


def escape(text: str) -> str:
    """Return `text` with every character that does not print as an escape, tabs and line ends included."""
    return visible(text, OTHER_SPACES)


def escape_lines(text: str, indent: str = "") -> str:
    """Return a text of several lines, each escaped and indented; tabs become spaces."""
    lines = text.replace("\r\n", "\n").rstrip("\n").split("\n")
    return "\n".join(f"{indent}{escape(line.expandtabs(4))}" for line in lines)


def one_line(text: str) -> str:
    """Return `text` escaped and on one line."""
    return escape(" ".join(text.split()))


def head(text: str, lines: int) -> str:
    """Return the first `lines` lines of `text`, and how many more there are."""
    every = text.rstrip("\n").split("\n")
    if len(every) <= lines:
        return "\n".join(every)
    left = len(every) - lines
    return "\n".join([*every[:lines], f"… {left} more line{'' if left == 1 else 's'}"])


def width_of(text: str) -> int:
    """Return how many columns `text` takes on a terminal."""
    return len(text) if text.isascii() else sum(_columns(c) for c in text)


def cut(text: str, width: int) -> str:
    """Return `text` in at most `width` columns, with an ellipsis if it was cut."""
    if width_of(text) <= width:
        return text
    return f"{text[: _fitting(text, max(0, width - 1))].rstrip()}…"


def padded(text: str, width: int) -> str:
    """Return `text` cut or filled to exactly `width` columns."""
    text = cut(text, width)
    return text + " " * (width - width_of(text))


def wrapped(text: str, width: int) -> list[str]:
    """Return the lines of `text`, each in at most `width` columns, broken at spaces where there are any."""
    lines: list[str] = []
    for line in text.split("\n"):
        rest = line
        while (fits := max(1, _fitting(rest, width))) < len(rest):
            space = rest.rfind(" ", 1, fits + 1)
            end = space if space > 0 else fits
            lines.append(rest[:end].rstrip())
            rest = rest[end:].lstrip()
        lines.append(rest)
    return lines


def _fitting(text: str, width: int) -> int:
    """Return how many characters fit into the width. Looks at no more of the text."""
    for number, c in enumerate(text):
        width -= _columns(c)
        if width < 0:
            return number
    return len(text)


def folded(line: str, width: int, indent: str = "") -> list[str]:
    """Return a line that may have colours in pieces that fit the width; all but the first are indented."""
    if width_of(without_colours(line)) <= width:
        return [line]
    pieces, piece, room, colour = [], "", width, ""
    for part in COLOUR_CODE.split(line):
        if part.startswith("\x1b"):
            colour = "" if part == PLAIN else part
            piece += part
            continue
        for c in part:
            if room < _columns(c):
                pieces.append(piece + (PLAIN if colour else ""))
                piece, room = indent + colour, width - len(indent)
            piece += c
            room -= _columns(c)
    return [*pieces, piece]


def table(rows: Sequence[Sequence[str]], limits: Sequence[int]) -> list[str]:
    """Return `rows` as aligned lines.

    A column is as wide as its widest cell. On a terminal it is at most its limit, and the last column takes
    the rest of the line; a program that reads the table gets all of it.
    """
    is_whole = not is_terminal(sys.stdout)
    widest = [max((width_of(row[column]) for row in rows), default=0) for column in range(len(limits))]
    widths = widest if is_whole else list(map(min, widest, limits))
    rest = max(8, line_width() - sum(widths) - len(GAP) * len(widths))
    return [
        GAP.join(
            [
                *(padded(cell, widths[i]) for i, cell in enumerate(row[:-1])),
                row[-1] if is_whole else cut(row[-1], rest),
            ]
        ).rstrip()
        for row in rows
    ]


def line_width() -> int:
    """Return the width of the terminal in columns: 80 if there is none."""
    return shutil.get_terminal_size((80, 24)).columns


def duration(seconds: float) -> str:
    """Return a time span in two units at most: `41s`, `3m12s`, `1h05m`, `2d03h`."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def short_number(number: int) -> str:
    """Return a number in six characters at most: `940`, `4.3k`, `126k`, `1.2M`."""
    if number < 1000:
        return str(number)
    unit, size = ("k", 1e3) if number < 999_500 else ("M", 1e6) if number < 999_500_000 else ("G", 1e9)
    return f"{number / size:.{0 if number >= 10 * size else 1}f}{unit}"


def tokens_cell(usage: Usage) -> str:
    """Return the tokens of a sum for a table."""
    if usage.tokens is None:
        return UNKNOWN
    return least_mark(usage.at_least, *TOKENS) + short_number(usage.tokens)


def cost_cell(usage: Usage) -> str:
    """Return the cost of a sum for a table, nothing if it is not known."""
    return "" if usage.cost_usd is None else cost_text(usage.cost_usd, usage.at_least)


def cost_text(cost: Decimal | None, at_least: Collection[str]) -> str:
    """Return a cost in dollars; `at_least` has `costUsd` if a part of it is not known."""
    return UNKNOWN if cost is None else least_mark(at_least, "costUsd") + dollars(cost)


def moment(when: datetime) -> str:
    """Return a moment in the local time of the person; records and `--json` have UTC."""
    return f"{when.astimezone():%Y-%m-%d %H:%M:%S %Z}"


def with_local_time(event: dict[str, Any]) -> dict[str, Any]:
    """Return an event of a journal with its time in that of the person; one that is odd stays as it is."""
    try:
        at = datetime.fromisoformat(str(event["at"])).astimezone()
    except (KeyError, ValueError, OverflowError):
        return event
    return {**event, "at": f"{at:%Y-%m-%dT%H:%M:%S %Z}"}


def is_dumb() -> bool:
    """Whether the terminal knows no escape sequences, by TERM."""
    return os.environ.get("TERM") == "dumb"


def facts(pairs: Iterable[tuple[str, str | None]]) -> str:
    """Return named facts under each other; those that are None or empty are left out."""
    lines: list[str] = []
    for name, value in pairs:
        if value:
            first, *rest = value.split("\n")
            lines += [f"{name:<{_NAMES}}{first}", *(f"{'':<{_NAMES}}{line}" for line in rest)]
    return "\n".join(lines)


def prose(text: str) -> str:
    """Return the value of a fact that is read and not copied: on a terminal, broken at its spaces."""
    if not is_terminal(sys.stdout):
        return text
    return "\n".join(wrapped(text, max(_LEAST_PROSE, line_width() - _NAMES)))


def _columns(c: str) -> int:
    if unicodedata.combining(c) or unicodedata.category(c) == "Cf":  # what `escape` leaves of these joins
        return 0
    return 2 if unicodedata.east_asian_width(c) in "WF" else 1


# -- The sentence of an error for people: it names commands instead of the tools that a model would call.


def for_people(sentence: str) -> str:
    """Return a sentence on one line, with commands and their arguments instead of tools and theirs."""
    return one_line(with_commands(sentence))


def run_cell(run_id: str) -> str:
    """Return the id for a list: on a terminal its last part, which every command takes as well."""
    return run_id.rpartition("-")[2] if is_terminal(sys.stdout) else run_id


def argument_or_stdin(text: str, what: str) -> str:
    """Return `text`, or for `-` all of stdin without trailing line ends.

    Raises:
        BadArgument: stdin is closed or is not UTF-8; `what` names the text in the sentence.
    """
    if text != "-":
        return text
    if sys.stdin is None:
        raise BadArgument(f"The {what} cannot be read, because stdin is closed: give it as an argument.")
    try:
        return sys.stdin.buffer.read().decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise BadArgument(f"The {what} on stdin is not UTF-8 text: convert it first.") from error
