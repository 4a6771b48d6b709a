"""`subagent new`: write the file of a new agent."""

import click

from subagent_server.agents.formats import load_agent_file
from subagent_server.cli.console.app import Session, pass_session
from subagent_server.cli.console.output import TEXT, ExitCode, Flags, err, json_option, out, out_json
from subagent_server.cli.console.terminal import one_line
from subagent_server.verbs.check_agent import AgentChecker
from subagent_server.verbs.new_agent import new_agent

_FIRST_TASK = "Where does this project say how it is built and tested?"


@click.command()
@click.argument("name", type=TEXT)
@click.option(
    "--from",
    "source",
    type=TEXT,
    metavar="AGENT",
    help="Copy this agent: one of yours, or reviewer, scout, timekeeper or triage, which come with subagent.",
)
@json_option
@pass_session
def new(session: Session, name: str, source: str | None, as_json: bool) -> ExitCode:
    """Write the file of a new agent, agents/NAME.md, ready to run and to be edited.

    Nothing is replaced. If no other agent or MCP server comes with this directory, it is trusted, so that the
    agent runs at once.
    """
    session.check_is_user()
    made = new_agent(session.service, name, source)
    checked = AgentChecker(session.service).check(load_agent_file(made.path))
    if as_json:
        refusals = [refusal.sentence for refusal in checked.refusals]
        trusted = checked.doubt is None
        out_json({"agent": name, "file": str(made.path), "trusted": trusted, "refusals": refusals})
        return ExitCode.OK
    out(one_line(session.shown(made.path)))
    if made.is_trusted:
        err("This directory is trusted now: nothing else comes with it that starts or instructs a program.")
    if checked.doubt is not None:
        err(one_line(f"Not trusted: {checked.doubt.remark}"))
    for refusal in checked.refusals:
        err(one_line(f"Before it runs: {refusal.sentence}"))
    err("Edit it to make it yours; each run reads it anew, and so does a server that is running.")
    directories = click.get_current_context().ensure_object(Flags).agents
    named = [word for path in directories for word in ("--agents", str(path))]
    task = _FIRST_TASK if source is None else "What it should do"
    err(f"Next: {session.command('run', name, task, *named)}")
    return ExitCode.OK
