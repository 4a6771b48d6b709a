"""`subagent continue`: carry on a run that has ended, with its whole conversation."""

from pathlib import Path

import click

from subagent_server.cli.console.app import Session, complete_runs
from subagent_server.cli.console.output import TEXT, ExitCode
from subagent_server.cli.console.starting import (
    AfterStart,
    argument_or_stdin,
    inputs_from_here,
    override_options,
    overrides,
    script_file,
    script_option,
    start_options,
    start_run,
)
from subagent_server.run.records import FlowOptions
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
@click.option("--dry-run", is_flag=True, help="Of a flow: start nothing, and list what each call would be.")
@click.option(
    "--fresh",
    type=TEXT,
    multiple=True,
    metavar="AGENT",
    help="Of a flow: ask this agent anew; may be repeated.",
)
@click.option("--retry-failed", is_flag=True, help="Of a flow: start calls anew that failed by themselves.")
@override_options
@script_option
@start_options
def continue_(
    session: Session,
    run: str,
    prompt: str | None,
    inputs: tuple[str, ...],
    label: str | None,
    stored_agent: bool,
    dry_run: bool,
    fresh: tuple[str, ...],
    retry_failed: bool,
    script: Path | None,
    how: AfterStart,
) -> ExitCode:
    """Continue a run that has ended, as a new run.

    It has the whole conversation and works in the same directory, with the agent as its file is now. PROMPT
    says what to do next; `-` reads it from stdin. Without one the run continues where it was cut; a run that
    has completed needs one. Options such as --model are for the new run; those of the old one are not kept.
    The rest is as with `subagent run`.

    A flow is run again with the program as it is now: calls whose runs have completed return their results,
    those that were cut go on, and only new ones start.
    """
    options = FlowOptions(retry_failed=retry_failed, fresh=list(fresh), dry_run=dry_run)
    order = ContinueOrder(
        session.run_id(run),
        None if prompt is None else argument_or_stdin(prompt, "prompt"),
        inputs_from_here(session, inputs),
        label,
        stored_agent,
        client=COMMAND_LINE,
        overrides=overrides(),
        script=script_file(session, script),
        flow=options if options != FlowOptions() else None,
    )

    return start_run(session, lambda: continue_run(session.service, order, session.caller), how)
