"""`subagent ask`: a program of a run asks its parent one question, and prints the answer."""

import math

import click

from subagent_server.cli.console.app import Session, pass_session
from subagent_server.cli.console.follow import wait_for
from subagent_server.cli.console.output import SECONDS, TEXT, EarlyExit, ExitCode, out
from subagent_server.run.states import MessageStatus
from subagent_server.verbs.access import NotAllowed
from subagent_server.verbs.questions import ask_as_child
from subagent_server.verbs.reconcile import Observed
from subagent_server.verbs.views import AS_TOOLS, view_for


@click.command()
@click.argument("question", type=TEXT)
@click.option(
    "--option", "options", multiple=True, type=TEXT, metavar="TEXT", help="A likely answer; may be repeated."
)
@click.option(
    "--timeout",
    type=SECONDS,
    metavar="SECONDS",
    help="Wait at most so long.  [default: as its agent file says]",
)
@pass_session
def ask(session: Session, question: str, options: tuple[str, ...], timeout: float | None) -> ExitCode:
    """Ask the parent of this run one question, wait, and print the answer alone.

    For scripts with `runner: command`. Exits with 1 if the question expires or the run ends first, and with
    124 if --timeout is over; the question stays open then.
    """
    run_id = session.caller.run_id
    if run_id is None:
        raise NotAllowed(
            "Only a program of a run can ask its parent, and SUBAGENT_RUN_ID and SUBAGENT_RUN_TOKEN are not "
            "set here: use `subagent reply` to answer a run."
        )
    asked = ask_as_child(session.service, run_id, question, list(options) or None, session.caller)
    message_id = asked.meta.messages[-1].message_id

    def check() -> Observed | None:
        observed = session.open_run(run_id)
        message = observed.meta.message(message_id)
        is_open = message is not None and message.message_status is MessageStatus.PENDING
        return None if is_open and not observed.meta.status.is_terminal else observed

    found = wait_for(session.service, [run_id], check, math.inf if timeout is None else timeout)
    if found is None:
        raise EarlyExit(ExitCode.TIMED_OUT, f"the {timeout:g} s are over, and nobody has answered.")
    view = view_for(session.service, found, AS_TOOLS, message_id, session.caller, is_asker=True)
    answer = next((each.answer for each in view.messages or [] if each.message_id == message_id), None)
    if answer is None:
        raise EarlyExit(ExitCode.FAILED, "nobody answered in time.")
    out(answer)
    return ExitCode.OK
