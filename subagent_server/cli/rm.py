"""`subagent rm`: remove runs that have ended."""

import click

from subagent_server.cli.console.app import Session, code_of, complete_runs, each_of, pass_session
from subagent_server.cli.console.follow import until_gone
from subagent_server.cli.console.output import ExitCode, err, has_person, json_option, out, out_json
from subagent_server.cli.console.terminal import for_people
from subagent_server.verbs.remove import StillEnding, remove, sweep
from subagent_server.verbs.run_worktree import UnmergedWork


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="RUN...", shell_complete=complete_runs)
@click.option(
    *("-y", "--yes", "--drop-unmerged", "drop_unmerged"),
    is_flag=True,
    help="Do not ask: also drop changes in worktrees that were not merged.",
)
@json_option
@pass_session
def rm(session: Session, names: tuple[str, ...], drop_unmerged: bool, as_json: bool) -> ExitCode:
    """Remove runs that are over, with all their files.

    A run that lives is refused, and so is one whose parent or child does: `subagent stop` ends them. The
    processes of a run that has just ended may take 12 s to go. The runs that it started stay. Changes in its
    worktree that were not merged are asked about; without a terminal the run stays, unless --drop-unmerged is
    given. Each RUN is removed or refused by itself; the exit code is that of the first that was refused.
    """
    session.check_is_user()
    run_ids, unknown = session.named_runs(names)
    sweep(session.service.store)
    removed, left = each_of(run_ids, lambda run_id: _remove(session, run_id, drop_unmerged=drop_unmerged))
    left = [*unknown, *left]
    if as_json:
        out_json({"removed": removed, "left": [each.to_wire() for each in left]})
    elif removed:
        out("\n".join(removed))
    return code_of(left)


def _remove(session: Session, run_id: str, *, drop_unmerged: bool) -> str:
    """Remove a run and return its id; a person is asked before unmerged changes go."""
    try:
        _remove_ended(session, run_id, drop_unmerged=drop_unmerged)
    except UnmergedWork as refused:
        if not has_person():
            raise
        err(for_people(refused.sentence))
        if not click.confirm("Drop these changes?", err=True):
            raise
        remove(session.service.store, run_id, drop_unmerged=True)
    return run_id


def _remove_ended(session: Session, run_id: str, *, drop_unmerged: bool) -> None:
    """Remove a run, after a wait of at most 12 s for its processes if it has only just ended."""
    try:
        remove(session.service.store, run_id, drop_unmerged=drop_unmerged)
    except StillEnding:
        until_gone(session, [run_id])
        remove(session.service.store, run_id, drop_unmerged=drop_unmerged)
