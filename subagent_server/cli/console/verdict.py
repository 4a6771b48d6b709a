"""The outcome of a run as an exit code, a sentence on stderr and a line."""

from collections.abc import Iterable

from subagent_server.cli.console.error_text import for_people
from subagent_server.cli.console.exits import ExitCode
from subagent_server.cli.console.output import report
from subagent_server.cli.console.session import Session
from subagent_server.cli.console.text import look_of, one_line
from subagent_server.domain.records import RunMeta
from subagent_server.domain.states import Status
from subagent_server.service.views import RunView

_ENDINGS = {
    Status.COMPLETED: ExitCode.OK,
    Status.FAILED: ExitCode.FAILED,
    Status.STOPPED: ExitCode.STOPPED,
}
_WORST_FIRST = (ExitCode.NEEDS_ANSWER, ExitCode.FAILED, ExitCode.STOPPED)


def exit_of_run(meta: RunMeta) -> ExitCode | None:
    """Return the exit code of a run that has ended or asks; None while it works."""
    return ExitCode.NEEDS_ANSWER if meta.pending_questions else _ENDINGS.get(meta.status)


def exit_of_started(meta: RunMeta) -> ExitCode | None:
    """Return the same for the command that started the run: 6 if the machine had no room for its process."""
    if meta.error is not None and meta.error.code == "launch_failed":
        return ExitCode.ENVIRONMENT
    return exit_of_run(meta)


def worst(codes: Iterable[ExitCode | None]) -> ExitCode:
    """Return the code of several runs: a question (5) before a failure (1) before a stop (4) before 0."""
    found = set(codes)
    return next((code for code in _WORST_FIRST if code in found), ExitCode.OK)


def report_run(session: Session, view: RunView, *, is_known: bool = False) -> None:
    """Print open questions, a failure or a stop of a run to stderr, a line each.

    `is_known` says that the followed log has just shown the reason of the end, which is not repeated.
    """
    for message in view.messages or []:
        options = f" [{' | '.join(map(one_line, message.options))}]" if message.options else ""
        command = session.command("reply", view.run_id, message.message_id, "ANSWER")
        report(
            f"run {view.run_id} asks {message.message_id}: {one_line(message.question)}{options} "
            f"Answer with `{command}`.",
            code="needs_answer",
            next_step=command,
        )
    if is_known and view.status in (Status.FAILED, Status.STOPPED):
        ended = f"failed ({one_line(view.error.code)})" if view.error is not None else "was stopped"
        report(f"run {view.run_id} {ended}: `{session.command('show', view.run_id)}` has all of it.")
    elif view.error is not None:
        remedy = for_people(view.error.hint) if view.error.hint else None
        what_next = f" {remedy}" if remedy else ""
        failed = one_line(f"run {view.run_id} failed ({view.error.code}): {view.error.message}")
        failed += "" if failed.endswith((".", "!", "?", "…")) else "."
        report(f"{failed}{what_next}", code=view.error.code, next_step=remedy)
    elif view.status is Status.STOPPED:
        stopped = one_line(f"run {view.run_id} was stopped. {view.summary or ''}")
        report(stopped, code="stopped", next_step=session.command("continue", view.run_id))


def row(view: RunView) -> str:
    """Return a run on one line: status, id and agent."""
    look = look_of(view.status, len(view.messages or ()), view.live)
    return f"{look.text:<12}  {view.run_id}  {one_line(view.agent)}"
