"""`subagent prune`: remove runs that ended long ago, and directories of starts that failed."""

from datetime import timedelta

import click

from subagent_server.cli.console.app import Session, pass_session
from subagent_server.cli.console.output import SPAN, ExitCode, err, json_option, out, out_json, report
from subagent_server.cli.console.terminal import one_line
from subagent_server.verbs import remove
from subagent_server.verbs.remove import Age, Pruned

DEFAULT = timedelta(days=30)


@click.command()
@click.option(
    "--older-than",
    type=SPAN,
    metavar="SPAN",
    help="Only runs that ended so long ago: 45m, 12h, 30d, 8w.  [default: 30d, without --keep]",
)
@click.option("--keep", type=click.IntRange(min=0), metavar="N", help="Keep the newest N that have ended.")
@click.option("--dry-run", "-n", is_flag=True, help="Only say what would be removed.")
@json_option
@pass_session
def prune(
    session: Session, older_than: timedelta | None, keep: int | None, dry_run: bool, as_json: bool
) -> ExitCode:
    """Remove runs that ended long ago, and directories that failed starts have left.

    With --older-than and --keep, only runs that are both. What lives stays, with its parent and its children;
    so does a run whose state cannot be read (`subagent rm` removes it), and one with changes in its worktree
    that were not merged. Stopping it in the middle does no
    harm: each run is there or gone.
    """
    session.check_is_user()
    age = Age(
        older_than if older_than is not None else timedelta() if keep is not None else DEFAULT, keep or 0
    )
    removed: list[str] = []
    left: list[Pruned] = []
    for item in remove.prune(session.service.store, age, dry_run=dry_run):
        if item.why is not None:
            left.append(item)
            report(one_line(item.why))
            continue
        removed.append(item.run_id)
        if not as_json:
            out(item.run_id)
    if as_json:
        kept = [{"runId": item.run_id, "why": item.why} for item in left]
        out_json({"dryRun": dry_run, "removed": removed, "left": kept})
    else:
        verb = "would be removed" if dry_run else "removed"
        err(f"{len(removed)} run{'' if len(removed) == 1 else 's'} {verb}.")
    return ExitCode.OK
