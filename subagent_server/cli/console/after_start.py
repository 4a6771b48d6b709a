"""Start a run from the command line, then follow it, wait for it or detach: `run` and `continue`."""

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import click

from subagent_server.cli.console.asking import ask_person, has_person
from subagent_server.cli.console.event_text import EventText, log_beside_result, printer_to_stderr
from subagent_server.cli.console.exits import ExitCode
from subagent_server.cli.console.flags import SECONDS
from subagent_server.cli.console.follow import LogFollower
from subagent_server.cli.console.interrupts import interrupts_held, watching
from subagent_server.cli.console.output import OutputClosed, is_terminal, out, out_json, report
from subagent_server.cli.console.session import Session
from subagent_server.cli.console.text import cut, escape_lines, one_line
from subagent_server.cli.console.verdict import exit_of_run, exit_of_started, report_run
from subagent_server.domain.records import RunMeta
from subagent_server.domain.states import Status
from subagent_server.service.open_run import open_run
from subagent_server.service.reconcile import Observed
from subagent_server.service.stop import stop
from subagent_server.service.views import RunView
from subagent_server.store.latest import latest_doing

_DOING_CHARACTERS = 200

detach_option = click.option(
    "-d", "--detach", is_flag=True, help="Print the run's id and exit; the run goes on."
)
wait_option = click.option(
    "--wait",
    "seconds",
    type=SECONDS,
    metavar="SECONDS",
    help="Wait silently, at most so long; the run goes on afterwards.  [default: follow, without end]",
)


stop_option = click.option(
    "--stop", "stops", is_flag=True, help="With --wait: stop the run if it has not ended by then, or asks."
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

    def check(self) -> None:
        """Refuse options that contradict each other, before anything is started. Raises UsageError."""
        if self.detach and self.seconds is not None:
            raise click.UsageError("--detach exits at once and --wait waits: give one of them.")
        if self.stops and self.seconds is None:
            raise click.UsageError("--stop belongs to --wait SECONDS: say how long the run may take.")


def start_run(session: Session, begin: Callable[[], RunMeta], how: AfterStart) -> ExitCode:
    """Start a run by `begin`, do as `how` says, print the outcome and return the exit code."""
    with interrupts_held() as release:
        run_id = begin().run_id
    log = log_beside_result()
    with watching(session, run_id):
        if how.detach:
            return _detached(session, _look(session, run_id), how.as_json)
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


def inputs_from_here(session: Session, inputs: tuple[str, ...]) -> list[str]:
    """Make paths of files that exist here absolute; the others are looked for where the agent works."""
    return [str(session.settings.cwd / name) if _is_here(session, name) else name for name in inputs]


def _is_here(session: Session, name: str) -> bool:
    try:
        return bool(name) and (session.settings.cwd / name).exists()
    except OSError:  # too long a name, or no permission: the service reports it
        return False


def _look(session: Session, run_id: str) -> Observed:
    return open_run(session.service, run_id, session.caller)


def _follow(session: Session, run_id: str, writer: EventText) -> Observed:
    """Print the log until the run ends; ask a person at the terminal its questions."""
    show = printer_to_stderr(writer)
    with LogFollower(session) as follower:
        follower.add(run_id, 0)
        while True:
            observed = follower.until(lambda seen: bool(seen.meta.pending), show)
            if not observed.meta.pending or not has_person():
                return observed
            if not ask_person(session, run_id, observed.meta.pending[0]):
                return observed


def _wait(session: Session, run_id: str, seconds: float) -> Observed:
    from subagent_server.cli.console.watch import wait_for  # asyncio is not needed to follow

    def check() -> Observed | None:
        observed = _look(session, run_id)
        return observed if exit_of_run(observed.meta) is not None else None

    return wait_for(session, [run_id], check, seconds) or _look(session, run_id)


def _stopped(session: Session, observed: Observed, seconds: float) -> Observed:
    """Stop a run that has not ended, and return it when its processes are gone."""
    from subagent_server.cli.console.until_gone import until_gone  # as above

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
    elif result.text and not (is_terminal(sys.stdout) and result.text.strip() == shown.strip()):
        out(escape_lines(result.text) if is_terminal(sys.stdout) else result.text)
