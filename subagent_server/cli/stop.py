"""`subagent stop`: stop runs, and report whether their processes have exited."""

import click

from subagent_server.cli.console.complete import complete_runs
from subagent_server.cli.console.exits import ExitCode
from subagent_server.cli.console.flags import TEXT, json_option
from subagent_server.cli.console.follow import until_gone
from subagent_server.cli.console.interrupts import watching
from subagent_server.cli.console.output import out, out_json, report
from subagent_server.cli.console.refused import Refused, code_of, refusal
from subagent_server.cli.console.session import Session, pass_session
from subagent_server.cli.console.verdict import row
from subagent_server.domain.errors import SubagentError
from subagent_server.service import stop as service
from subagent_server.service.reconcile import Observed


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="RUN...", shell_complete=complete_runs)
@click.option("--reason", type=TEXT, metavar="TEXT", help="Why, for the record.")
@json_option
@pass_session
def stop(session: Session, names: tuple[str, ...], reason: str | None, as_json: bool) -> ExitCode:
    """Stop runs, and the runs that they started.

    Waits up to 12 s until their processes are gone; exits with 124 if some are not. Stopping a run that
    has ended changes nothing. Each RUN is stopped or refused by itself; the exit code is that of the first
    that was refused.
    """
    run_ids, unknown = session.named_runs(names)
    stopped, refused = _stop_each(session, run_ids, reason)
    code = code_of([*unknown, *refused])
    with watching(session, *(stopped or names)):
        observed = until_gone(session, stopped)
    _print(session, observed, as_json)
    living = [one.meta.run_id for one in observed if one.live]
    for run_id in living:
        report(f"run {run_id} has ended, but processes of it still live: {_prospect(session, run_id)}")
    return code or (ExitCode.TIMED_OUT if living else ExitCode.OK)


def _stop_each(session: Session, run_ids: list[str], reason: str | None) -> tuple[list[str], list[Refused]]:
    """Stop each run; a refusal is reported and the others are stopped all the same."""
    stopped: list[str] = []
    refused: list[Refused] = []
    caller = session.leader()
    for run_id in run_ids:
        try:
            service.stop(session.service, run_id, reason, caller)
            stopped.append(run_id)
        except SubagentError as error:
            refused.append(refusal(run_id, error))
    return stopped, refused


def _prospect(session: Session, run_id: str) -> str:
    """Return what becomes of the processes of a run that has ended."""
    shim = service.suspended_shim(session.service, run_id)
    if shim is None:
        return "they are killed soon."
    return f"its shim, which ends them, is suspended: `kill -CONT {shim}` lets it go on."


def _print(session: Session, observed: list[Observed], as_json: bool) -> None:
    views = [session.view(one) for one in observed]
    if as_json:
        out_json([view.to_wire() for view in views])
    elif views:
        out("\n".join(row(view) for view in views))
