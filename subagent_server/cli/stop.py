"""`subagent stop`: stop runs, and report whether their processes have exited."""

import click

from subagent_server.cli.console.app import Session, code_of, complete_runs, each_of, pass_session
from subagent_server.cli.console.follow import until_gone, watching
from subagent_server.cli.console.output import TEXT, ExitCode, json_option, report
from subagent_server.cli.console.show_text import out_views
from subagent_server.verbs import end_run as service


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
    caller = session.leader()

    def one(run_id: str) -> str:
        service.stop(session.service, run_id, reason, caller)
        return run_id

    stopped, refused = each_of(run_ids, one)
    code = code_of([*unknown, *refused])
    with watching(session, *(stopped or names)):
        observed = until_gone(session, stopped)
    out_views([session.view(one) for one in observed], as_json)
    living = [one.meta.run_id for one in observed if one.live]
    for run_id in living:
        report(f"run {run_id} has ended, but processes of it still live: {_prospect(session, run_id)}")
    return code or (ExitCode.TIMED_OUT if living else ExitCode.OK)


def _prospect(session: Session, run_id: str) -> str:
    """Return what becomes of the processes of a run that has ended."""
    shim = service.suspended_shim(session.service, run_id)
    if shim is None:
        return "they are killed soon."
    return f"its shim, which ends them, is suspended: `kill -CONT {shim}` lets it go on."
