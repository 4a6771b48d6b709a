"""`subagent ls`: list runs, those that need a person first."""

import os
import sys
from collections.abc import Callable
from itertools import islice
from typing import Any, NoReturn

import click

from subagent_server.cli.console.colours import coloured
from subagent_server.cli.console.flags import TEXT, json_option
from subagent_server.cli.console.output import err, is_terminal, out, out_json
from subagent_server.cli.console.row_cells import age_cell, run_cell, what_cell
from subagent_server.cli.console.session import Session, pass_session
from subagent_server.cli.console.text import duration, look_of, one_line, table
from subagent_server.domain.states import Status
from subagent_server.service.list_runs import RunFilter, RunList
from subagent_server.service.run_row import RunRow
from subagent_server.store.facts import read_task_facts
from subagent_server.store.paths import RootPaths

LAST = 10
_SHORT = {"waiting": Status.WAITING, "replied": Status.REPLIED}
_NAMES = [status.value for status in Status] + list(_SHORT)
_LIMITS = (12, 32, 16, 4, 6)
_HEADER = ("STATUS", "RUN", "AGENT", "AGE", "TIME", "WHAT")


@click.command()
@click.option("-a", "--all", "everything", is_flag=True, help="List every run.")
@click.option(
    "--status",
    "statuses",
    type=click.Choice(_NAMES),
    multiple=True,
    metavar="STATUS",
    help=f"Only runs of this status; may be repeated. One of {', '.join(_NAMES)}.",
)
@click.option("--agent", type=TEXT, metavar="NAME", help="Only runs of this agent.")
@click.option("-n", "count", type=click.IntRange(min=0), metavar="N", help="List N runs at most.")
@click.option("-q", "--quiet", is_flag=True, help="Print ids only.")
@click.option("--tree", "as_tree", is_flag=True, help="Show whole trees: below each run those it started.")
@click.option("-w", "--watch", "watching", is_flag=True, help="Stay, and show the trees as they change.")
@json_option
@pass_session
def ls(
    session: Session,
    everything: bool,
    statuses: tuple[str, ...],
    agent: str | None,
    count: int | None,
    quiet: bool,
    as_tree: bool,
    watching: bool,
    as_json: bool,
) -> None:
    """List runs: those that need you, those that work, the last that ended.

    Without -a or -n: every run that has not ended and the last 10 of the others. A run whose state cannot be
    read is listed as such. --watch groups whole trees by whether they need you, work or are done, with what
    each has cost; on a terminal it takes keys (`?` lists them). With --json it prints a line for each change.
    Ctrl-C ends the watching.
    """
    statuses_wanted = frozenset(_SHORT.get(name) or Status(name) for name in statuses)
    root = RootPaths(session.settings.runs_root)

    def found() -> tuple[RunList, list[RunRow]]:
        listing = RunList(root, RunFilter(statuses_wanted, agent), session.caller)
        return listing, _shown(listing, everything, count)

    if watching:
        _watch(session, lambda: [row.run_id for row in found()[1]], as_json)
    listing, shown = found()
    if as_tree and shown:
        from subagent_server.cli.console.trees import show_trees

        show_trees(session, [row.run_id for row in shown], quiet=quiet, as_json=as_json)
    elif as_json:
        out_json([_wire(root, row) for row in shown])
    elif quiet:
        _print("\n".join(row.run_id for row in shown))
    else:
        _print(_table(root, shown))
        _remark(session, listing, shown)


def _watch(session: Session, run_ids: Callable[[], list[str]], as_json: bool) -> NoReturn:
    """Show trees as they change; at a terminal with a person, on a screen that takes keys."""
    takes_keys = is_terminal(sys.stdin) and is_terminal(sys.stdout) and os.environ.get("TERM") != "dumb"
    if takes_keys and not as_json:
        from subagent_server.cli.console.live_screen import LiveScreen  # a plain list needs none of this

        LiveScreen(session, run_ids).show()
    from subagent_server.cli.console.trees import watch_trees

    watch_trees(session, run_ids, as_json=as_json)


def _shown(listing: RunList, everything: bool, count: int | None) -> list[RunRow]:
    """Return the runs that have not ended and the last ten others, or the first `count`."""
    if count is not None:
        return list(islice(listing.every(), count))
    return [*listing.active, *islice(listing.over(), None if everything else LAST)]


def _table(root: RootPaths, rows: list[RunRow]) -> str:
    if not rows:
        return ""
    cells = [_HEADER, *(_cells(root, row) for row in rows)]
    header, *lines = table(cells, _LIMITS)
    looks = [look_of(row.status, row.pending_questions, row.live) for row in rows]
    return "\n".join(
        [
            header,
            *(
                line.replace(look.text, coloured(look.text, look.colour), 1)
                for line, look in zip(lines, looks, strict=True)
            ),
        ]
    )


def _cells(root: RootPaths, row: RunRow) -> tuple[str, ...]:
    look = look_of(row.status, row.pending_questions, row.live)
    time = "" if row.elapsed_seconds is None else duration(row.elapsed_seconds)
    agent = one_line(row.agent or "")
    return (look.text, run_cell(row.run_id), agent, age_cell(row), time, what_cell(root, row))


def _wire(root: RootPaths, row: RunRow) -> dict[str, Any]:
    """Return the JSON object of a row, with the model and the directory of its task."""
    from subagent_server.catalog.models import resolve_model  # a list for people needs none of this

    task = read_task_facts(root.run(row.run_id))
    model = resolve_model(task.model) if task.runner in (None, "messages") else task.model
    told = {"model": model, "cwd": task.cwd} if task.cwd is not None else {}
    return row.to_full_wire() | {name: value for name, value in told.items() if value is not None}


def _print(text: str) -> None:
    if text:
        out(text)


def _remark(session: Session, listing: RunList, shown: list[RunRow]) -> None:
    """Print a remark on runs that the list does not show, for people only."""
    if not shown and not any(islice(RunList(listing.root, caller=session.caller).every(), 1)):
        is_missing = not session.settings.runs_root.exists() and session.named_root is not None
        there = "There is no directory" if is_missing else "No runs in"
        err(f"{there} {session.settings.runs_root}: `subagent run AGENT PROMPT` starts a run.")
        return
    if not shown and not listing.active and next(iter(listing.every()), None) is None:
        err("No run fits: `subagent ls -a` lists all.")
        return
    if not is_terminal(sys.stderr):
        return
    if asking := sum(bool(row.pending_questions) for row in listing.active):
        err(f"{asking} need{'s' if asking == 1 else ''} an answer: `{session.command('inbox')}`")
    if next(islice(listing.every(), len(shown), None), None) is not None:
        err(f"There are more: `{session.command('ls', '-a')}`")
