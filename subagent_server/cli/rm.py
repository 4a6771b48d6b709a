"""`subagent rm` and `prune`: remove runs that have ended, by name or by age."""

from datetime import timedelta

import click

from subagent_server.cli.console.app import Session, code_of, complete_runs, each_of, json_session, report
from subagent_server.cli.console.follow import until_gone
from subagent_server.cli.console.option_types import SPAN, Count
from subagent_server.cli.console.terminal import (
    ExitCode,
    err,
    for_people,
    has_person,
    one_line,
    out,
    out_json,
)
from subagent_server.run.journal import count
from subagent_server.verbs import remove as removing
from subagent_server.verbs.remove import Age, Pruned, StillEnding, remove, sweep
from subagent_server.verbs.run_worktree import UnmergedWork

_DEFAULT = timedelta(days=30)


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="RUN...", shell_complete=complete_runs)
@click.option(
    *("-y", "--yes", "--drop-unmerged", "drop_unmerged"),
    is_flag=True,
    help="Do not ask: also drop changes in worktrees that were not merged.",
)
@json_session
def rm(session: Session, names: tuple[str, ...], drop_unmerged: bool) -> ExitCode:
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
    if session.as_json:
        out_json({"removed": removed, "left": [{"runId": each.name, "why": each.why} for each in left]})
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


@click.command()
@click.option(
    "--older-than",
    type=SPAN,
    help="Only runs that ended so long ago: 45m, 12h, 30d, 8w.  [default: 30d, without --keep]",
)
@click.option("--keep", type=Count(min=0), metavar="N", help="Keep the newest N that have ended.")
@click.option("--dry-run", "-n", is_flag=True, help="Only say what would be removed.")
@json_session
def prune(session: Session, older_than: timedelta | None, keep: int | None, dry_run: bool) -> None:
    """Remove runs that ended long ago, and directories that failed starts have left.

    With --older-than and --keep, only runs that are both. What lives stays, with its parent and its children;
    so does a run whose state cannot be read (`subagent rm` removes it), and one with changes in its worktree
    that were not merged. Stopping it in the middle does no
    harm: each run is there or gone.
    """
    session.check_is_user()
    age = Age(
        older_than if older_than is not None else timedelta() if keep is not None else _DEFAULT, keep or 0
    )
    removed: list[str] = []
    left: list[Pruned] = []
    for item in removing.prune(session.service.store, age, dry_run=dry_run):
        if item.why is not None:
            left.append(item)
            report(one_line(item.why))
            continue
        removed.append(item.run_id)
        if not session.as_json:
            out(item.run_id)
    kept = [{"runId": item.run_id, "why": item.why} for item in left]
    verb = "would be removed" if dry_run else "removed"
    facts = {"dryRun": dry_run, "removed": removed, "left": kept}
    session.say_done(facts, f"{count(len(removed), 'run')} {verb}.")
