"""`subagent rerun`: start the task of a run once more, as a new run."""

from dataclasses import replace
from pathlib import Path

import click

from subagent_server.cli.console.app import Session, complete_runs
from subagent_server.cli.console.output import TEXT, ExitCode
from subagent_server.cli.console.starting import (
    AfterStart,
    edited,
    override_options,
    overrides,
    script_file,
    script_option,
    start_options,
    start_run,
)
from subagent_server.verbs.access import COMMAND_LINE
from subagent_server.verbs.continue_run import order_of
from subagent_server.verbs.scripts import check_not_scripted
from subagent_server.verbs.start import start


@click.command()
@click.argument("run", shell_complete=complete_runs)
@click.option("-e", "--edit", is_flag=True, help="Change the prompt in $EDITOR first.")
@click.option(
    "-l", "--label", type=TEXT, metavar="TEXT", help="What `subagent ls` calls it.  [default: as before]"
)
@override_options
@script_option
@start_options
def rerun(
    session: Session,
    run: str,
    edit: bool,
    label: str | None,
    script: Path | None,
    how: AfterStart,
) -> ExitCode:
    """Start the task of a run once more, as a new run.

    The prompt, the inputs and the directory are those of RUN; the agent and the inputs are read as they are
    now. The new run knows nothing of the old one: `subagent continue` continues a conversation. The rest
    is as with `subagent run`.
    """
    order = order_of(session.service, session.run_id(run), session.caller)
    order = replace(
        order,
        prompt=edited(order.prompt, "prompt") if edit else order.prompt,
        label=label or order.label,
        overrides=overrides(),
        client=COMMAND_LINE,
        script=script_file(session, script),
    )
    if script is None:
        check_not_scripted(session.service, session.run_id(run))

    return start_run(session, lambda: start(session.service, order, session.caller), how)
