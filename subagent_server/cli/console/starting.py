"""Start a run from the command line, then follow it, wait for it or detach: `run`, `rerun` and `continue`."""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from subagent_server import extensions
from subagent_server.agents.expand import fault_of
from subagent_server.cli.console.app import Session, pass_session
from subagent_server.cli.console.asking import ask_person, with_trust
from subagent_server.cli.console.follow import LogFollower, interrupts_held, until_gone, wait_for, watching
from subagent_server.cli.console.output import (
    DIRECTORY,
    SECONDS,
    TEXT,
    ExitCode,
    OutputClosed,
    err,
    has_person,
    is_terminal,
    json_option,
    out,
    out_json,
    report,
    trust_option,
)
from subagent_server.cli.console.show_text import (
    EventText,
    exit_of_run,
    exit_of_started,
    log_next_to_result,
    report_run,
)
from subagent_server.cli.console.terminal import cut, escape_lines, one_line
from subagent_server.run.durable import parse
from subagent_server.run.errors import BadArgument
from subagent_server.run.journal import latest_doing
from subagent_server.run.records import RunMeta
from subagent_server.run.states import Status
from subagent_server.verbs.end_run import stop
from subagent_server.verbs.reconcile import Observed
from subagent_server.verbs.scripts import PlayedScript
from subagent_server.verbs.views import RunView

_DOING_CHARACTERS = 200
_OVERRIDES = {
    "--model": ("model", "MODEL", "Its model: an alias (opus, sonnet, haiku) or an id."),
    "--effort": ("effort", "EFFORT", "How hard it thinks: low, medium, high, xhigh or max."),
    "--budget": ("budgetUsd", "USD", "What the run and all runs below may cost."),
    "--timeout": ("timeoutSeconds", "SECONDS", "How long it may work; waits for an answer do not count."),
    "--max-turns": ("maxTurns", "N", "How many turns it may take."),
}
"""By option: the key of the agent's file that it stands for, and its help."""
_KEPT = "subagent_server.overrides"

V = TypeVar("V", bound=Callable[..., Any])

script_option = click.option(
    "--script",
    type=DIRECTORY,
    metavar="FILE",
    help="Let this script play the model: no key is needed, and nothing is billed.",
)
_WAYS = (
    trust_option,
    click.option("-d", "--detach", is_flag=True, help="Print the run's id and exit; the run continues."),
    click.option(
        "--wait",
        "seconds",
        type=SECONDS,
        metavar="SECONDS",
        help="Wait silently, at most so long; the run continues afterwards.  [default: follow, without end]",
    ),
    click.option(
        "--stop",
        "stops",
        is_flag=True,
        help="With --wait: stop the run if it has not ended by then, or asks.",
    ),
    json_option,
)


@dataclass(frozen=True)
class AfterStart:
    """What to do after the start: detach, wait silently for `seconds`, or (neither) follow the log.

    `stops` says to stop a run that has not ended when the wait is over.
    """

    detach: bool
    seconds: float | None
    stops: bool
    as_json: bool


def start_options(verb: Callable[..., ExitCode]) -> Callable[..., ExitCode]:
    """Give a verb the options that say what follows the start; it gets them as `how`, and its session."""

    @wraps(verb)
    def with_options(*, detach: bool, seconds: float | None, stops: bool, as_json: bool, **rest: Any) -> Any:
        if detach and seconds is not None:
            raise click.UsageError("--detach exits at once and --wait waits: give one of them.")
        if stops and seconds is None:
            raise click.UsageError("--stop belongs to --wait SECONDS: say how long the run may take.")
        return pass_session(verb)(how=AfterStart(detach, seconds, stops, as_json), **rest)

    made: Callable[..., ExitCode] = with_options
    for option in reversed(_WAYS):
        made = option(made)
    return made


def override_options(verb: V) -> V:
    """Give a verb the options that change an agent for one run; `overrides` returns their values."""
    for option, (key, metavar, words) in reversed(_OVERRIDES.items()):
        verb = click.option(
            option,
            key,
            type=TEXT,
            metavar=metavar,
            help=f"{words}  [default: as its file says]",
            expose_value=False,
            callback=_keep,
        )(verb)
    return verb


def overrides() -> dict[str, str]:
    """Return the keys of the agent's file that the options of this command give, with their values."""
    return dict(click.get_current_context().meta.get(_KEPT, {}))


def _keep(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is None or param.name is None:
        return
    if (fault := fault_of(param.name, value)) is not None:
        raise click.BadParameter(f"it {fault}.")
    ctx.meta.setdefault(_KEPT, {})[param.name] = value


# -- what is given


def script_file(session: Session, file: Path | None) -> PlayedScript | None:
    """Return the script of a file, or None without a file. Raises BadArgument, ScriptError."""
    if file is None:
        return None
    if (where := extensions.script_reader()) is None:
        raise BadArgument("--script needs the simulator, which is not in this installation: leave it out.")
    path = session.settings.cwd / file
    return PlayedScript(path.name, extensions.imported(where)(path))


def inputs_from_here(session: Session, inputs: tuple[str, ...]) -> list[str]:
    """Make paths of files that exist here absolute; the others are looked for where the agent works."""

    def from_here(name: str) -> str:
        with suppress(OSError):  # too long a name, or no permission: the service reports it
            if name and (session.settings.cwd / name).exists():
                return str(session.settings.cwd / name)
        return name

    return [from_here(name) for name in inputs]


def argument_or_stdin(text: str, what: str) -> str:
    """Return `text`, or for `-` all of stdin without trailing line ends.

    Raises:
        BadArgument: stdin is closed or is not UTF-8; `what` names the text in the sentence.
    """
    return stdin_text(what) if text == "-" else text


def stdin_text(what: str) -> str:
    """Return all of stdin. Raises as `argument_or_stdin` does."""
    if sys.stdin is None:
        raise BadArgument(f"The {what} cannot be read, because stdin is closed: give it as an argument.")
    try:
        return sys.stdin.buffer.read().decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise BadArgument(f"The {what} on stdin is not UTF-8 text: convert it first.") from error


def has_editor() -> bool:
    """Whether the person has named an editor."""
    return bool(os.environ.get("VISUAL") or os.environ.get("EDITOR"))


def edited(text: str, what: str) -> str:
    """Return `text` after the person has edited it; `what` is its name in the sentence of a refusal.

    Raises:
        BadArgument: there is no editor, it failed, or nothing was left.
    """
    if not has_editor():
        raise BadArgument(f"The {what} cannot be edited, because no editor is named: set EDITOR.")
    try:
        written = click.edit(text, extension=".md", require_save=False)
    except click.ClickException as error:
        raise BadArgument(f"The {what} was not edited ({error.format_message()}): set EDITOR.") from error
    if written is None or not written.strip():
        raise BadArgument(f"The {what} is empty, so nothing was started: say what the agent should do.")
    return written.rstrip("\r\n")


# -- the start, and what follows


def start_run(session: Session, begin: Callable[[], RunMeta], how: AfterStart) -> ExitCode:
    """Start a run by `begin`, do as `how` says, print the outcome and return the exit code.

    A person is asked to trust a directory that is not trusted.
    """
    return with_trust(session, lambda: _started(session, begin, how), may_ask=not how.as_json)


def _started(session: Session, begin: Callable[[], RunMeta], how: AfterStart) -> ExitCode:
    with interrupts_held() as release:  # until the id is known, by which the run can be watched or stopped
        run_id = begin().run_id
    log = log_next_to_result()
    with watching(session, run_id):
        if how.detach:
            return _detached(session, session.open_run(run_id), how.as_json)
        release()
        if how.seconds is None:
            report(f"run {run_id} has started; Ctrl-C stops the watching, never the run.")
            observed = _follow(session, run_id, log)
        else:
            observed = _wait(session, run_id, how.seconds)
        code = exit_of_started(observed.meta)
        if how.stops and observed.meta.ended_at is None:
            observed = _stopped(session, observed, how.seconds or 0)
    return _finished(session, observed, how, code, log)


def _follow(session: Session, run_id: str, writer: EventText) -> Observed:
    """Print the log until the run ends; ask a person at the terminal its questions."""

    def show(_: str, line: str) -> None:
        event = parse(line)
        for each in writer.lines(event) if event is not None else ():
            err(each)

    with LogFollower(session) as follower:
        follower.add(run_id, 0)
        while True:
            observed = follower.until(lambda seen: bool(seen.meta.pending), show)
            if not observed.meta.pending or not has_person():
                return observed
            if not ask_person(session, run_id, observed.meta.pending[0]):
                return observed


def _wait(session: Session, run_id: str, seconds: float) -> Observed:
    def check() -> Observed | None:
        observed = session.open_run(run_id)
        return observed if exit_of_run(observed.meta) is not None else None

    return wait_for(session.service, [run_id], check, seconds) or session.open_run(run_id)


def _stopped(session: Session, observed: Observed, seconds: float) -> Observed:
    """Stop a run that has not ended, and return it when its processes are gone."""
    if observed.meta.pending:
        asked = one_line(observed.meta.pending[0].question_content)
        reason = f"It asked, and nobody answers here: {cut(asked, _DOING_CHARACTERS)}"
    else:
        reason = f"It had not ended after {seconds:g} s{_doing(session, observed)}"
    stop(session.service, observed.meta.run_id, reason, session.leader())
    (gone,) = until_gone(session, [observed.meta.run_id])
    return gone


def _doing(session: Session, observed: Observed) -> str:
    """Return the present step of a run, for the sentence that says that the run has not ended."""
    if observed.meta.pending:
        return ""
    doing = latest_doing(session.service.store.paths.run(observed.meta.run_id))
    return f"; last: {cut(one_line(doing), _DOING_CHARACTERS)}" if doing else ""


def _detached(session: Session, observed: Observed, as_json: bool) -> ExitCode:
    """Print the id or view of a detached run; a run that was refused has failed already."""
    view = session.view(observed)
    code = exit_of_started(observed.meta)
    has_failed = code in (ExitCode.FAILED, ExitCode.ENVIRONMENT)
    with suppress(OutputClosed):
        if as_json:
            out_json(view.to_wire())
        else:
            out(view.run_id)
        if has_failed:
            report_run(session, view)
    return code if code is not None and has_failed else ExitCode.OK


def _finished(
    session: Session, observed: Observed, how: AfterStart, code: ExitCode | None, log: EventText
) -> ExitCode:
    """Print the result and remarks, and return the exit code; `code` is None if the wait was over first.

    What `log` has shown already is not repeated.
    """
    view = session.view(observed)
    with suppress(OutputClosed):  # a closed output does not change how the run ended
        if how.as_json:
            out_json(view.to_wire())
        elif view.status is Status.COMPLETED:
            _print_result(session, view, log.last_text)
        report_run(session, view, is_known=log.has_ended and not how.as_json)
        if code is None and not how.stops:
            report(
                f"run {view.run_id} has not ended after {how.seconds or 0:g} s and goes on"
                f"{_doing(session, observed)}. `{session.command('logs', '-f', view.run_id)}` watches it.",
                code="timed_out",
                next_step=session.command("wait", view.run_id),
            )
    return ExitCode.TIMED_OUT if code is None else code


def _print_result(session: Session, view: RunView, shown: str) -> None:
    """Print the whole result: unchanged into a file or a pipe, escaped on a terminal that lacks it."""
    result = session.service.store.read_result(view.run_id)
    if result is None:
        return
    if result.has_output:
        out_json(result.output, indent=2)
    elif result.text and not is_terminal(sys.stdout):
        out(result.text)
    elif result.text.strip() != shown.strip():
        out(escape_lines(result.text))
