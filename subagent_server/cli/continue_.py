"""`subagent continue`: carry on a run that has ended, with its whole conversation."""

import click

from subagent_server.cli.console.app import Session, complete_runs
from subagent_server.cli.console.output import TEXT, ExitCode
from subagent_server.cli.console.starting import (
    AfterStart,
    argument_or_stdin,
    inputs_from_here,
    override_options,
    overrides,
    start_options,
    start_run,
)
from subagent_server.verbs.access import COMMAND_LINE
from subagent_server.verbs.continue_run import ContinueOrder, continue_run


@click.command("continue")
@click.argument("run", shell_complete=complete_runs)
@click.argument("prompt", required=False, type=TEXT, metavar="[PROMPT|-]")
@click.option(
    "--input",
    "inputs",
    type=TEXT,
    multiple=True,
    metavar="FILE",
    help="A file that the agent may read: text, PDF or image; may be repeated. Looked for from here, "
    "else from where the run worked.",
)
@click.option(
    "-l", "--label", type=TEXT, metavar="TEXT", help="What `subagent ls` calls it.  [default: as before]"
)
@click.option(
    "--stored-agent",
    is_flag=True,
    help="If the file of the agent is gone, take the definition that the run was started with.",
)
@override_options
@start_options
def continue_(
    session: Session,
    run: str,
    prompt: str | None,
    inputs: tuple[str, ...],
    label: str | None,
    stored_agent: bool,
    how: AfterStart,
) -> ExitCode:
    """Continue a run that has ended, as a new run.

    It has the whole conversation and works in the same directory, with the agent as its file is now. PROMPT
    says what to do next; `-` reads it from stdin. Without one the run continues where it was cut; a run that
    has completed needs one. Options such as --model are for the new run; those of the old one are not kept.
    The rest is as with `subagent run`.
    """
    order = ContinueOrder(
        session.run_id(run),
        None if prompt is None else argument_or_stdin(prompt, "prompt"),
        inputs_from_here(session, inputs),
        label,
        stored_agent,
        client=COMMAND_LINE,
        overrides=overrides(),
    )

    return start_run(session, lambda: continue_run(session.service, order, session.caller), how)
