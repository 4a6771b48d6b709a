"""`subagent logs`: print or follow the log of a run, for people or as events."""

import click

from subagent_server.cli.console.complete import complete_runs
from subagent_server.cli.console.flags import json_option
from subagent_server.cli.console.interrupts import watching
from subagent_server.cli.console.output import err, out, out_json
from subagent_server.cli.console.session import Session, pass_session
from subagent_server.cli.console.text import escape_lines
from subagent_server.host.journal import parse
from subagent_server.service.open_run import open_run
from subagent_server.store.logs import page


@click.command()
@click.argument("run", shell_complete=complete_runs)
@click.option("-f", "--follow", is_flag=True, help="Go on until the run has ended.")
@click.option(
    "-n",
    "--tail",
    "lines",
    type=click.IntRange(min=0),
    default=50,
    show_default=True,
    metavar="N",
    help="Begin with the last N lines.",
)
@json_option
@pass_session
def logs(session: Session, run: str, follow: bool, lines: int, as_json: bool) -> None:
    """Print the log of a run, or follow it.

    With --json: its events, one JSON object a line. Ctrl-C stops the following, never the run.
    """
    run_id = session.run_id(run)
    open_run(session.service, run_id, session.caller)
    paths = session.service.store.paths.run(run_id)
    file = paths.events if as_json else paths.log
    show = _show_event if as_json else _show_line
    tail = page(file, None, lines)
    with watching(session, run_id):
        for line in tail.lines:
            show(line)
        if follow:
            from subagent_server.cli.console.follow import LogFollower  # watching is not needed to read

            with LogFollower(session, run_id, file, tail.cursor) as follower:
                follower.until(lambda _: False, show)
        elif not tail.cursor:
            err(f"Run {run_id} has no log yet: `{session.command('logs', '-f', run_id)}` waits for it.")


def _show_line(line: str) -> None:
    out(escape_lines(line))


def _show_event(line: str) -> None:
    event = parse(line)
    if event is not None:  # a line torn by a crash is not an event
        out_json(event, indent=None)
