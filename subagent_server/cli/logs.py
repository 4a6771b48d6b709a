"""`subagent logs`: print or follow the logs of runs, for people or as events."""

import sys
from collections.abc import Callable

import click

from subagent_server.cli.console.app import Session, complete_runs, pass_session
from subagent_server.cli.console.follow import LogFollower, watching
from subagent_server.cli.console.output import err, json_option, out, out_json
from subagent_server.cli.console.show_text import EventText, prefixes
from subagent_server.run.durable import parse
from subagent_server.run.errors import SubagentError
from subagent_server.run.journal import in_order, page
from subagent_server.verbs.reconcile import subtree


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="RUN...", shell_complete=complete_runs)
@click.option("-f", "--follow", is_flag=True, help="Follow until the runs have ended.")
@click.option(
    "-n",
    "--tail",
    "count",
    type=click.IntRange(min=0),
    default=50,
    show_default=True,
    metavar="N",
    help="Begin with the last N events of each run.",
)
@click.option("--tree", is_flag=True, help="The runs that they started, too.")
@click.option("--full", is_flag=True, help="Everything that the journal has of tools and texts.")
@json_option
@pass_session
def logs(
    session: Session,
    names: tuple[str, ...],
    follow: bool,
    count: int,
    tree: bool,
    full: bool,
    as_json: bool,
) -> None:
    """Print the log of a run, or follow it.

    Of several runs each line begins with agent and id. With --json: events, one JSON object a line, with
    `runId` if there are several runs. Ctrl-C stops the following, never the runs.
    """
    run_ids = _with_children(session, names) if tree else session.run_ids(names)
    agents = {run_id: session.open_run(run_id).meta.agent_name for run_id in run_ids}
    several = tree or len(run_ids) > 1
    show = _events(several) if as_json else _lines(session, agents, full, several)
    paths = session.service.store.paths
    tails = {run_id: page(paths.run(run_id).events, None, count) for run_id in run_ids}
    with watching(session, *run_ids):
        past = ((run_id, line) for run_id, each in tails.items() for line in each.lines)
        for run_id, line in in_order(past) if several else past:
            show(run_id, line)
        if follow:
            with LogFollower(session, tree=tree) as follower:
                for run_id, each in tails.items():
                    follower.add(run_id, each.cursor)
                follower.until(lambda _: False, show)
        elif not any(each.cursor for each in tails.values()):
            waiting = session.command("logs", "-f", run_ids[0])
            err(f"Run {run_ids[0]} has no log yet: `{waiting}` waits for it.")


def _with_children(session: Session, names: tuple[str, ...]) -> list[str]:
    """Return the runs that are named, each followed by all runs below."""
    found: dict[str, None] = {}
    for run_id in session.run_ids(names):
        meta = session.open_run(run_id).meta
        found.update({below.run_id: None for below in subtree(session.service.store, meta)})
    return list(found)


def _lines(session: Session, agents: dict[str, str], full: bool, several: bool) -> Callable[[str, str], None]:
    writers: dict[str, EventText] = {}

    def writer_of(run_id: str) -> EventText:
        if run_id not in agents:  # a run that has been started since
            agents[run_id] = _agent_of(session, run_id)
        if run_id not in writers:
            begin = prefixes(agents, sys.stdout)[run_id] if several else ""
            writers[run_id] = EventText(begin, full, apart=agents if several else ())
        return writers[run_id]

    def show(run_id: str, line: str) -> None:
        event = parse(line)
        for each in writer_of(run_id).lines(event) if event is not None else ():
            out(each)

    return show


def _agent_of(session: Session, run_id: str) -> str:
    try:
        return session.service.store.read(run_id).agent_name
    except SubagentError:
        return ""


def _events(several: bool) -> Callable[[str, str], None]:
    def show(run_id: str, line: str) -> None:
        event = parse(line)
        if event is not None:  # a line torn by a crash is not an event
            out_json({"runId": run_id, **event} if several else event, indent=None)

    return show
