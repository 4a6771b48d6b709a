"""`subagent merge`: merge what a run has changed in its worktree."""

import click

from subagent_server.cli.console.app import Session, complete_runs, json_session
from subagent_server.cli.console.terminal import one_line, out, out_json
from subagent_server.verbs.merge_run import merge_run
from subagent_server.worktrees.merging import MergeWay


@click.command()
@click.argument("run", shell_complete=complete_runs)
@click.option("--merge", "way", flag_value="merge", default=True, help="As a merge commit (the default).")
@click.option("--squash", "way", flag_value="squash", help="As one commit.")
@click.option(
    "--rebase", "way", flag_value="rebase", help="Its commits one by one, on top of the working copy's."
)
@json_session
def merge(session: Session, run: str, way: MergeWay) -> None:
    """Merge what a run has changed in its worktree (`isolation: worktree`).

    It goes into the working copy that the run was started in; that of a nested run into the worktree of the
    run that started it. Conflicts are found first and named, and then nothing is changed; nor is it if
    uncommitted changes are in the way. Hooks and other programs of the repository are not run.
    """
    merged = merge_run(session.service, session.run_id(run), way, session.leader())
    if session.as_json:
        out_json(
            {"runId": merged.run_id, "branch": merged.branch, "into": merged.into, "commit": merged.commit}
        )
    else:
        out(one_line(merged.sentence))
