"""`subagent run`: start an agent, then follow the run, wait for it or detach."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from subagent_server.cli.console.app import Session, complete_agents
from subagent_server.cli.console.output import TEXT, ExitCode, is_terminal
from subagent_server.cli.console.starting import (
    AfterStart,
    argument_or_stdin,
    edited,
    has_editor,
    inputs_from_here,
    override_options,
    overrides,
    script_file,
    script_option,
    start_options,
    start_run,
    stdin_text,
)
from subagent_server.verbs.access import COMMAND_LINE
from subagent_server.verbs.start import StartOrder, start


@click.command()
@click.argument("agent", type=TEXT, shell_complete=complete_agents)
@click.argument("prompt", required=False, type=TEXT, metavar="[PROMPT|-]")
@click.option(
    "--input",
    "inputs",
    type=TEXT,
    multiple=True,
    metavar="FILE",
    help="A file that the agent may read: text, PDF or image; may be repeated. Looked for from here, "
    "else from --cwd.",
)
@click.option("-l", "--label", type=TEXT, metavar="TEXT", help="What `subagent ls` calls this run.")
@click.option(
    "--cwd", type=TEXT, metavar="DIR", help="Where the agent works.  [default: as its file says, else here]"
)
@click.option(
    "--arg",
    "named",
    type=TEXT,
    multiple=True,
    metavar="NAME=VALUE",
    help="An argument of a flow, in the place of a prompt: JSON, else a text; may be repeated.",
)
@click.option("--args", "whole", type=TEXT, metavar="JSON", help="All arguments of a flow, as an object.")
@override_options
@script_option
@start_options
def run(
    session: Session,
    agent: str,
    prompt: str | None,
    inputs: tuple[str, ...],
    label: str | None,
    cwd: str | None,
    named: tuple[str, ...],
    whole: str | None,
    script: Path | None,
    how: AfterStart,
) -> ExitCode:
    """Start an agent and follow it until it ends.

    PROMPT says what it should do; `-` reads it from stdin, and without one it is written in $EDITOR. The log
    goes to stderr while it works, the result to stdout at the end, so `subagent run reviewer "..." > file`
    keeps the review. What the agent asks is asked on the terminal; without one the command exits with 5 and
    says how to answer. Ctrl-C stops the watching, never the run.
    """
    arguments = _arguments(named, whole)
    if arguments is None and prompt is None and session.service.registry.get(agent).runner == "flow":
        arguments = {}
    order = StartOrder(
        agent=agent,
        prompt=_prompt(prompt) if arguments is None else prompt or "",
        arguments=arguments,
        inputs=inputs_from_here(session, inputs),
        cwd=cwd,
        label=label,
        client=COMMAND_LINE,
        overrides=overrides(),
        script=script_file(session, script),
    )

    return start_run(session, lambda: start(session.service, order, session.caller), how)


def _arguments(named: tuple[str, ...], whole: str | None) -> dict[str, Any] | None:
    """Return the arguments of a flow, None if there are none. Raises UsageError."""
    if whole is None and not named:
        return None
    try:
        found = json.loads(whole) if whole is not None else {}
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"--args is not JSON ({error}): give an object.") from error
    if not isinstance(found, dict):
        raise click.UsageError('--args must be a JSON object, such as {"name": "value"}.')
    for each in named:
        name, equals, text = each.partition("=")
        if not equals:
            raise click.UsageError(f"--arg {each}: give NAME=VALUE.")
        try:
            found[name] = json.loads(text)
        except (ValueError, RecursionError):
            found[name] = text
    return found


def _prompt(given: str | None) -> str:
    if given is not None:
        return argument_or_stdin(given, "prompt")
    if not is_terminal(sys.stdin):
        return stdin_text("prompt")
    if has_editor() and is_terminal(sys.stdout):
        return edited("", "prompt")
    raise click.UsageError(
        'The prompt is missing: say in quotes what the agent should do ("Review the last commit"), '
        "give - and type it, or set EDITOR to write it there."
    )
