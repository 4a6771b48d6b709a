"""The entry point: run a verb, and turn an exception into one line on stderr and an exit code.

With --json the line is an object, with the same sentence.
"""

import os
import re
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from itertools import takewhile
from typing import NamedTuple

import click

from subagent_server.cli.console.error_text import for_people
from subagent_server.cli.console.exits import EarlyExit, ExitCode, exit_of_error
from subagent_server.cli.console.flags import Flags
from subagent_server.cli.console.group import subagent
from subagent_server.cli.console.output import (
    OutputClosed,
    err,
    last_clause,
    prepare_streams,
    reader_is_gone,
    report,
    report_json,
)
from subagent_server.cli.console.text import one_line
from subagent_server.domain.errors import SubagentError
from subagent_server.host.no_room import lack_of_room

_MEANT = re.compile(r"\(Did you mean one of: (.*)\?\)\.?$")
_REPORTED = (SubagentError, EarlyExit, OutputClosed, click.ClickException, click.Abort, OSError)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; `arguments` are those of the process by default."""
    prepare_streams()
    words = sys.argv[1:] if arguments is None else arguments
    flags = Flags(as_json="--json" in takewhile(lambda word: word != "--", words))
    try:
        code = subagent.main(arguments, prog_name="subagent", standalone_mode=False, obj=flags)
        return int(code or 0)
    except SystemExit:
        if reader_is_gone():  # click exits by itself after a --help whose reader has gone
            return ExitCode.OK
        raise
    except Exception as error:
        if not isinstance(error, _REPORTED) and lack_of_room(error) is None:
            raise
        if flags.debug:
            traceback.print_exc()
        if isinstance(error, click.exceptions.NoArgsIsHelpError):
            err(error.format_message())
            return ExitCode.USAGE
        verdict = _verdict(error)
        with suppress(OutputClosed, EarlyExit):
            if verdict.sentence and flags.as_json:
                next_step = verdict.next_step or last_clause(verdict.sentence)
                report_json(verdict.sentence, code=verdict.code, next_step=next_step)
            elif verdict.sentence:
                report(verdict.sentence)
        return verdict.exit


class _Verdict(NamedTuple):
    """The end of a verb by an error: exit code, code for programs, and its line, empty if there is none."""

    exit: ExitCode
    code: str
    sentence: str
    next_step: str | None = None


def _verdict(error: Exception) -> _Verdict:
    match error:
        case SubagentError():
            return _Verdict(exit_of_error(error), error.code, for_people(error.sentence))
        case EarlyExit():
            return _Verdict(error.code, error.code.name.lower(), one_line(error.sentence))
        case OutputClosed():
            return _Verdict(ExitCode.OK, "ok", "")
        case click.ClickException():
            return _usage(error)
        case click.Abort():
            return _Verdict(ExitCode.INTERRUPTED, "interrupted", "interrupted.")
        case OSError() if error.filename is not None:
            return _Verdict(ExitCode.ENVIRONMENT, "environment", _of_the_system(error))
        case _:
            sentence = lack_of_room(error) or _of_the_system(error)
            return _Verdict(ExitCode.ENVIRONMENT, "environment", sentence)


def _usage(error: click.ClickException) -> _Verdict:
    where = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "subagent"
    sentence = one_line(error.format_message())
    sentence = _MEANT.sub(r"Did you mean one of \1?", sentence)
    end = "" if sentence.endswith((".", "?")) else "."
    more = f"`{where} --help` says more."
    return _Verdict(ExitCode.USAGE, "usage", f"{sentence}{end} {more}", more)


def _of_the_system(error: Exception) -> str:
    named = getattr(error, "filename", None)
    place = one_line(os.fsdecode(named)) if isinstance(named, (str, bytes)) else "the system"
    why = getattr(error, "strerror", None) or error
    return f"{place}: {why}: mend that, or name another place, then try again."
