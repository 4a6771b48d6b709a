"""The entry point: run a verb, and turn an exception into one line on stderr and an exit code."""

import os
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NoReturn

import click

from subagent_server.cli.console.commands import for_people
from subagent_server.cli.console.exits import EarlyExit, ExitCode, exit_of_error
from subagent_server.cli.console.flags import Flags
from subagent_server.cli.console.group import subagent
from subagent_server.cli.console.output import OutputClosed, prepare_streams, reader_is_gone, report
from subagent_server.cli.console.text import one_line
from subagent_server.domain.errors import SubagentError
from subagent_server.host.no_room import lack_of_room

_REPORTED = (SubagentError, EarlyExit, OutputClosed, click.ClickException, click.Abort, OSError)


def main(arguments: Sequence[str] | None = None, *, leave: Callable[[int], NoReturn] = os._exit) -> int:
    """Run the command line and return its exit code; `arguments` are those of the process by default.

    A verb that exits at once, with threads that still wait, does so by `leave`.
    """
    prepare_streams()
    flags = Flags(leave=leave)
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
        code, sentence = _verdict(error)
        with suppress(OutputClosed, EarlyExit):
            if sentence:
                report(sentence)
        return code


def _verdict(error: Exception) -> tuple[ExitCode, str]:
    """Return the exit code and the line of an error; the line is empty if there is nothing to report."""
    match error:
        case SubagentError():
            return exit_of_error(error), for_people(error.sentence)
        case EarlyExit():
            return error.code, one_line(error.sentence)
        case OutputClosed():
            return ExitCode.OK, ""
        case click.ClickException():
            return ExitCode.USAGE, _usage(error)
        case click.Abort():
            return ExitCode.INTERRUPTED, "interrupted."
        case OSError() if error.filename is not None:
            return ExitCode.ENVIRONMENT, _of_the_system(error)
        case _:
            return ExitCode.ENVIRONMENT, lack_of_room(error) or _of_the_system(error)


def _usage(error: click.ClickException) -> str:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return "say what to do: `subagent --help` lists the verbs."
    where = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "subagent"
    sentence = one_line(error.format_message())
    end = "" if sentence.endswith((".", "?")) else "."
    return f"{sentence}{end} `{where} --help` says more."


def _of_the_system(error: Exception) -> str:
    named = getattr(error, "filename", None)
    place = one_line(os.fsdecode(named)) if isinstance(named, (str, bytes)) else "the system"
    why = getattr(error, "strerror", None) or error
    return f"{place}: {why}: mend that, or name another place, then try again."
