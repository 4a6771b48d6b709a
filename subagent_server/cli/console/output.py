"""Printing: data to stdout, remarks to stderr. If the reader of stdout has gone, the command ends quietly."""

import json
import os
import select
import sys
from typing import Any, TextIO

import click

from subagent_server.cli.console.exits import EarlyExit, ExitCode
from subagent_server.cli.console.flags import Flags

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
