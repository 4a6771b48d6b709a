"""`subagent rm`: remove runs that have ended."""

import click

from subagent_server.cli.console.complete import complete_runs
from subagent_server.cli.console.exits import ExitCode
from subagent_server.cli.console.flags import json_option
from subagent_server.cli.console.output import out, out_json
from subagent_server.cli.console.refused import code_of, refusal
from subagent_server.cli.console.session import Session, pass_session
from subagent_server.domain.errors import SubagentError
from subagent_server.service.remove import remove, sweep


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="RUN...", shell_complete=complete_runs)
@json_option
@pass_session
def rm(session: Session, names: tuple[str, ...], as_json: bool) -> ExitCode:
    """Remove runs that are over, with all their files.

    A run that lives is refused, and so is one whose parent or child does: `subagent stop` ends them. The runs
    that it started stay. Each RUN is removed or refused by itself; the exit code is that of the first that
    was refused.
    """
    session.check_is_user()
    run_ids, left = session.named_runs(names)
    removed: list[str] = []
    sweep(session.service.store)
    for run_id in run_ids:
        try:
            remove(session.service.store, run_id)
            removed.append(run_id)
        except SubagentError as error:
            left.append(refusal(run_id, error))
    if as_json:
        out_json({"removed": removed, "left": [each.to_wire() for each in left]})
    elif removed:
        out("\n".join(removed))
    return code_of(left)
