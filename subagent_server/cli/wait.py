"""`subagent wait` and `stop`: wait until runs end, or end them."""

import click

from subagent_server.cli.console.app import Session, code_of, complete_runs, each_of, json_session, report
from subagent_server.cli.console.follow import (
    exit_of_run,
    out_views,
    report_run,
    until_gone,
    wait_for,
    watching,
    worst,
)
from subagent_server.cli.console.option_types import SECONDS, TEXT
from subagent_server.cli.console.terminal import EarlyExit, ExitCode
from subagent_server.verbs import end_run as ending
from subagent_server.verbs.reconcile import Observed, declare_host_gone


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="RUN...", shell_complete=complete_runs)
@click.option("--any", "any_of_them", is_flag=True, help="Exit when the first of them has ended.")
@click.option("--timeout", type=SECONDS, help="Wait at most so long.  [default: without end]")
@json_session
def wait(session: Session, names: tuple[str, ...], any_of_them: bool, timeout: float | None) -> ExitCode:
    """Wait until runs end; the exit code says how.

    5 as soon as one of them asks; else, when all have ended (with --any: one), the worst of those that have:
    1 if one failed, 4 if one was stopped, 0 if all completed. 124 when the time is over. With
    --json a list of all their views.
    """
    run_ids = session.run_ids(names)

    def check() -> list[Observed] | None:
        observed = session.open_runs(run_ids)
        return observed if has_ended_or_asks(observed, any_of_them=any_of_them) else None

    if check() is None:
        session.service.store.paths.check_ours()  # runs of a foreign root are not waited for
    with watching(session, *run_ids):
        found = wait_for(session.service, run_ids, check, timeout)
    views = [session.view(one) for one in found or session.open_runs(run_ids)]
    out_views(session, views)
    for view in views:
        report_run(session, view)
    if found is None:
        raise EarlyExit(
            ExitCode.TIMED_OUT,
            f"the {timeout:g} s are over and what has not ended continues: "
            f"`{session.command('wait', *run_ids)}` waits on.",
        )
    return worst(exit_of_run(one.meta) for one in found)


def has_ended_or_asks(observed: list[Observed], *, any_of_them: bool) -> bool:
    """Whether all of the runs have ended (or one, with `any_of_them`), or one asks a question."""
    codes = [exit_of_run(one.meta) for one in observed]
    enough = any if any_of_them else all
    return ExitCode.NEEDS_ANSWER in codes or enough(code is not None for code in codes)


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="RUN...", shell_complete=complete_runs)
@click.option("--reason", type=TEXT, help="Why, for the record.")
@click.option(
    "--host-gone",
    is_flag=True,
    help="Of runs on another host: it is gone for good, such as an old container. They are `lost` then, and "
    "can be continued and removed here.",
)
@json_session
def stop(session: Session, names: tuple[str, ...], reason: str | None, host_gone: bool) -> ExitCode:
    """Stop runs, and the runs that they started.

    Waits up to 12 s until their processes are gone; exits with 124 if some are not. Stopping a run that
    has ended changes nothing. Each RUN is stopped or refused by itself; the exit code is that of the first
    that was refused.
    """
    if host_gone and reason is not None:
        raise click.UsageError("--host-gone is the reason: leave --reason out.")
    run_ids, unknown = session.named_runs(names)
    caller = session.leader()

    def one(run_id: str) -> str:
        if host_gone:
            declare_host_gone(session.service, run_id, caller)
        else:
            ending.stop(session.service, run_id, reason, caller)
        return run_id

    stopped, refused = each_of(run_ids, one)
    code = code_of([*unknown, *refused])
    with watching(session, *(stopped or names)):
        observed = until_gone(session, stopped)
    out_views(session, [session.view(one) for one in observed])
    living = [one.meta.run_id for one in observed if one.live]
    for run_id in living:
        report(f"run {run_id} has ended, but processes of it still live: {_prospect(session, run_id)}")
    return code or (ExitCode.TIMED_OUT if living else ExitCode.OK)


def _prospect(session: Session, run_id: str) -> str:
    """Return what becomes of the processes of a run that has ended."""
    shim = ending.suspended_shim(session.service, run_id)
    if shim is None:
        return "they are killed soon."
    return f"its shim, which ends them, is suspended: `kill -CONT {shim}` lets it continue."
