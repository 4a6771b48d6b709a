"""What follows a start on the command line: the run is followed, waited for, or left to itself."""

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import click

from subagent_server.cli.console.asking import ask_person, somebody_is_there
from subagent_server.cli.console.exits import ExitCode
from subagent_server.cli.console.flags import SECONDS
from subagent_server.cli.console.follow import Follower
from subagent_server.cli.console.interrupts import interrupts_held, watching
from subagent_server.cli.console.output import OutputClosed, complain, is_terminal, out, out_json, talk
from subagent_server.cli.console.session import Session
from subagent_server.cli.console.text import escape_lines
from subagent_server.cli.console.verdict import exit_of_run, tell
from subagent_server.domain.records import RunMeta
from subagent_server.domain.states import Status
from subagent_server.service.open_run import open_run
from subagent_server.service.reconcile import Observed
from subagent_server.service.views import RunView, run_view

detach_option = click.option(
    "-d", "--detach", is_flag=True, help="Print the run's id and leave; the run goes on."
)
wait_option = click.option(
    "--wait",
    "seconds",
    type=SECONDS,
    metavar="SECONDS",
    help="Wait silently, at most so long; the run goes on afterwards.  [default: follow, without end]",
)


@dataclass(frozen=True)
class Attendance:
    """How a run is attended: left at once, waited for, or (both unset) followed."""

    detach: bool
    seconds: float | None
    as_json: bool


def check_attendance(detach: bool, seconds: float | None) -> None:
    """Refuse what contradicts itself, before anything is started."""
    if detach and seconds is not None:
        raise click.UsageError("--detach leaves at once and --wait waits: give one of them.")


def attend(session: Session, begin: Callable[[], RunMeta], how: Attendance) -> ExitCode:
    """Start a run by `begin`, attend it, print what comes of it, and return how it stands."""
    with interrupts_held() as release:
        run_id = begin().run_id
    with watching(session, run_id):
        if how.detach:
            return _left(session, _look(session, run_id), how.as_json)
        release()
        if how.seconds is None:
            complain(f"run {run_id} has started; Ctrl-C stops the watching, never the run.")
            observed = _follow(session, run_id)
        else:
            observed = _wait(session, run_id, how.seconds)
    return _ended(session, observed, how.as_json, how.seconds)


def from_here(session: Session, inputs: tuple[str, ...]) -> list[str]:
    """Name files as the shell completes them; what is not there is left for the agent's directory."""
    return [str(session.settings.cwd / name) if _is_here(session, name) else name for name in inputs]


def _is_here(session: Session, name: str) -> bool:
    try:
        return bool(name) and (session.settings.cwd / name).exists()
    except OSError:  # too long a name, or a directory that is closed: the service says what is wrong
        return False


def _look(session: Session, run_id: str) -> Observed:
    return open_run(session.service, run_id, session.caller)


def _follow(session: Session, run_id: str) -> Observed:
    """Show the log until the run ends, and ask the person what it asks, where one is there."""
    log = session.service.store.paths.run(run_id).log
    with Follower(session, run_id, log, cursor=0) as follower:
        while True:
            observed = follower.until(lambda seen: bool(seen.meta.pending), _show)
            if not observed.meta.pending or not somebody_is_there():
                return observed
            if not ask_person(session, run_id, observed.meta.pending[0]):
                return observed


def _show(line: str) -> None:
    talk(escape_lines(line))


def _wait(session: Session, run_id: str, seconds: float) -> Observed:
    from subagent_server.cli.console.waiting import wait_for  # asyncio is not needed to follow

    def check() -> Observed | None:
        observed = _look(session, run_id)
        return observed if exit_of_run(observed.meta) is not None else None

    return wait_for(session, [run_id], check, seconds) or _look(session, run_id)


def _left(session: Session, observed: Observed, as_json: bool) -> ExitCode:
    """Say which run is on its way; one that was refused has failed already."""
    view = run_view(session.service.store, observed)
    code = exit_of_run(observed.meta)
    with suppress(OutputClosed):
        if as_json:
            out_json(view.to_wire())
        else:
            out(view.run_id)
        if code is ExitCode.FAILED:
            tell(session, view)
    return ExitCode.FAILED if code is ExitCode.FAILED else ExitCode.OK


def _ended(session: Session, observed: Observed, as_json: bool, seconds: float | None) -> ExitCode:
    """Print the result, say what else there is to say, and return how the run stands."""
    view = run_view(session.service.store, observed)
    code = exit_of_run(observed.meta)
    with suppress(OutputClosed):  # a reader who has left does not change how the run ended
        if as_json:
            out_json(view.to_wire())
        elif view.status is Status.COMPLETED:
            _print_result(session, view)
        tell(session, view, hint=seconds is not None)
        if code is None:
            complain(
                f"run {view.run_id} has not ended after {seconds or 0:g} s and goes on: "
                f"`{session.command('logs', '-f', view.run_id)}` watches it."
            )
    return ExitCode.TIMED_OUT if code is None else code


def _print_result(session: Session, view: RunView) -> None:
    """Print the whole result: as it is into a file or a pipe, escaped on a terminal."""
    result = session.service.store.read_result(view.run_id)
    if result is None:
        return
    if result.has_output:
        out_json(result.output, indent=2)
    elif result.text:
        out(escape_lines(result.text) if is_terminal(sys.stdout) else result.text)
