"""Printing: data to stdout, remarks to stderr. If the reader of stdout has gone, the command ends quietly."""

import json
import math
import os
import re
import select
import sys
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from pathlib import Path
from typing import Any, TextIO

import click

from subagent_server.run.errors import (
    CallerError,
    ForeignRoot,
    HostError,
    InvalidRunId,
    RunError,
    SubagentError,
    UnknownAgent,
    UnknownRun,
)

# -- The flags that every verb takes, before or after its name, and the types of option values.


@dataclass
class Flags:
    """The values of the flags that every verb takes. One after the verb overrides the same one before it."""

    agents: tuple[Path, ...] = ()
    runs: Path | None = None
    max_runs: int | None = None
    launcher: str | None = None
    trust: bool = False
    debug: bool = False
    as_json: bool = False
    """Whether --json is among the words: known before they are parsed, for what is wrong with them."""


def _text(value: str) -> str:
    """Return `value` if UTF-8 can encode it, as everything stored must be."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise click.BadParameter("it holds bytes that are not UTF-8: give text.") from error
    return value


def _seconds(value: str) -> float:
    """Return a finite number of seconds, at least 0."""
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds >= 0):
        raise click.BadParameter(f"{value!r} is no number of seconds: give 0 or more.")
    return seconds


def _directory(value: str | Path) -> Path:
    """Return the path of a directory, which need not exist yet."""
    if not str(value):
        raise click.BadParameter("it is empty: name a directory.")
    return Path(value)


def _span(value: str) -> timedelta:
    """Return a time span such as `30d`."""
    found = _SPAN.fullmatch(value)
    if found is None:
        raise click.BadParameter(f"{value!r} is no time span: give a number with s, m, h, d or w, as in 30d.")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_SPAN = re.compile(r"(\d{1,5})([smhdw])", re.ASCII)

TEXT = click.types.FuncParamType(_text)
SECONDS = click.types.FuncParamType(_seconds)
SPAN = click.types.FuncParamType(_span)
DIRECTORY = click.types.FuncParamType(_directory)

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


def common_options() -> list[click.Option]:
    """Return the options that every verb takes. Their values go into the context's `Flags`."""
    return [
        click.Option(
            ["--agents"],
            type=DIRECTORY,
            multiple=True,
            metavar="DIR",
            help="Where agent files are; may be repeated, the earlier wins.  "
            "[default: $SUBAGENT_AGENTS, else ./agents and ./.claude/agents]",
            **_KEPT,
        ),
        click.Option(
            ["--runs"],
            type=DIRECTORY,
            metavar="DIR",
            help="Where runs are kept.  [default: $SUBAGENT_RUNS, else the nearest runs/ upwards]",
            **_KEPT,
        ),
        click.Option(
            ["--max-runs"],
            type=click.IntRange(min=1),
            metavar="N",
            help="How many runs work at once; more wait.  [default: $SUBAGENT_MAX_RUNS, else 64]",
            **_KEPT,
        ),
        click.Option(
            ["--launcher"],
            metavar="WHERE",
            help="Where runs work whose agents do not say: local, slurm or ssh:HOST.  "
            "[default: $SUBAGENT_LAUNCHER, else local]",
            **_KEPT,
        ),
        click.Option(
            ["--debug"], is_flag=True, help="Show where in the program an error comes from.", **_KEPT
        ),
    ]


def take_common_options(command: click.Command) -> None:
    """Let a verb take the common options that it has no own meaning for; its help names them in a line."""
    own = {option for param in command.params for option in param.opts}
    common = [option for option in common_options() if own.isdisjoint(option.opts)]
    for option in common:
        option.hidden = True
    if not common:  # it has them since an earlier call
        return
    command.params += common
    names = ", ".join(name for option in common for name in option.opts)
    command.epilog = f"Every verb takes {names} too: see `subagent --help`."


def _keep(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    if value and param.name:
        setattr(ctx.ensure_object(Flags), param.name, value)


_KEPT: dict[str, Any] = {"expose_value": False, "callback": _keep}

trust_option = click.option(
    "--trust",
    is_flag=True,
    help="Use the agents and MCP servers that come with this directory, for this command.",
    **_KEPT,
)


# -- The exit codes of the command (SPEC section 11), and the exception that ends a verb early.


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
    """Ends the verb with this exit code and one sentence for people that says why."""

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


REMARK = "remark"
"""The code of a report that is no error."""


class OutputClosed(Exception):
    """The reader of the output has gone (`subagent ls | head -1`), so the command ends."""


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


def err(text: str) -> None:
    """Print text for people to stderr. Raises as `out` does."""
    _write(sys.stderr, f"{text}\n")


def report(sentence: str, *, code: str = REMARK, next_step: str | None = None) -> None:
    """Print the one line of an error or a remark to stderr; with --json an object on one line.

    Raises as `out` does.
    """
    context = click.get_current_context(silent=True)
    if context is not None and context.ensure_object(Flags).as_json:
        report_json(sentence, code=code, next_step=next_step)
    else:
        err(f"subagent: {sentence}")


def report_json(sentence: str, *, code: str, next_step: str | None = None) -> None:
    """Print an error or a remark as an object on one line of stderr. Raises as `out` does."""
    told = {"code": code, "message": sentence, "nextStep": next_step}
    err(json_text(told, indent=None))


def last_clause(sentence: str) -> str | None:
    """Return the clause after the last colon of an error's sentence, which is the next step."""
    _, colon, clause = sentence.rpartition(": ")
    return clause if colon and clause.count("`") % 2 == 0 else None


def out_json(value: Any, *, indent: int | None = 1) -> None:
    """Print one JSON value; with `indent` None on one line. Raises as `out` does."""
    out(json_text(value, indent=indent))


def json_text(value: Any, *, indent: int | None = 1) -> str:
    """Return `value` as JSON that is safe on a terminal: characters that do not print become JSON escapes."""
    text = json.dumps(value, ensure_ascii=not _speaks_unicode(), indent=indent)
    if text.isprintable():
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
    except BrokenPipeError as error:
        _point_nowhere(stream)
        raise OutputClosed from error
    except OSError as error:
        _point_nowhere(stream)
        raise EarlyExit(
            ExitCode.ENVIRONMENT,
            f"the output could not be written ({error.strerror}): free space, or name another file.",
        ) from error


def _point_nowhere(stream: TextIO) -> None:
    """Point the stream to /dev/null, or the interpreter reports its unwritten rest at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
