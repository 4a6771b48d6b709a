"""`subagent ls`: list runs, those that need a person first."""

import sys
from collections.abc import Callable
from itertools import chain, islice
from typing import Any, NamedTuple, NoReturn

import click

from subagent_server.cli.console.app import Session, pass_session
from subagent_server.cli.console.output import TEXT, err, is_terminal, json_option, out, out_json, report
from subagent_server.cli.console.show_text import age_cell, run_cell, what_cell
from subagent_server.cli.console.terminal import coloured, duration, is_dumb, look_of, one_line, table
from subagent_server.run.errors import SubagentError
from subagent_server.run.states import Status
from subagent_server.run.store import RunStore
from subagent_server.verbs.list_runs import ONLY_NEWEST, RunFilter, RunList
from subagent_server.verbs.views import RunRow

LAST = 10
MAX_TASK_CHARACTERS = 4_096
"""Of the model and the directory of a task, which are data: the system has no longer directory."""
_SHORT = {"waiting": Status.WAITING, "replied": Status.REPLIED}
_NAMES = [status.value for status in Status] + list(_SHORT)
_LIMITS = (12, 32, 16, 4, 6)
_HEADER = ("STATUS", "RUN", "AGENT", "AGE", "TIME", "WHAT")


class _Found(NamedTuple):
    listing: RunList
    rows: list[RunRow]
    has_more: bool


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
    store = RunStore(session.settings.runs_root)

    def found() -> _Found:
        wanted = RunFilter(statuses_wanted, agent)
        listing = RunList(store, wanted, session.caller, whole=everything)
        rows = listing.every() if count is not None else chain(listing.active, listing.over())
        most = count if count is not None else None if everything else len(listing.active) + LAST
        shown = list(islice(rows, None if most is None else most + 1))
        return _Found(listing, shown[:most], most is not None and len(shown) > most)

    if watching:
        _watch(session, lambda: [row.run_id for row in found().rows], as_json)
    result = found()
    shown = result.rows
    if as_tree and shown:
        from subagent_server.cli.console.follow import show_trees  # a plain list waits for no watcher

        show_trees(session, [row.run_id for row in shown], quiet=quiet, as_json=as_json)
    elif as_json:
        out_json([_wire(store, row) for row in shown])
    elif quiet:
        _print("\n".join(row.run_id for row in shown))
    else:
        _print(_table(store, shown))
        _remark(session, result)
    if result.listing.is_cut:
        report(f"{ONLY_NEWEST}: `{session.command('ls', '-a')}` looks at every one.")


def _watch(session: Session, run_ids: Callable[[], list[str]], as_json: bool) -> NoReturn:
    """Show trees as they change; at a terminal with a person, on a screen that takes keys."""
    takes_keys = is_terminal(sys.stdin) and is_terminal(sys.stdout) and not is_dumb()
    if takes_keys and not as_json:
        from subagent_server.cli.console.live_screen import LiveScreen

        LiveScreen(session, run_ids).show()
    from subagent_server.cli.console.follow import watch_trees

    watch_trees(session, run_ids, as_json=as_json)


def _table(store: RunStore, rows: list[RunRow]) -> str:
    if not rows:
        return ""
    cells = [_HEADER, *(_cells(store, row) for row in rows)]
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


def _cells(store: RunStore, row: RunRow) -> tuple[str, ...]:
    look = look_of(row.status, row.pending_questions, row.live)
    time = "" if row.elapsed_seconds is None else duration(row.elapsed_seconds)
    agent = one_line(row.agent or "")
    return (look.text, run_cell(row.run_id), agent, age_cell(row), time, what_cell(store.paths, row))


def _wire(store: RunStore, row: RunRow) -> dict[str, Any]:
    """Return the JSON object of a row, with the model and the directory of its task."""
    from subagent_server.agents.known_names import resolve_model  # a list for people reads no agent files

    wire = row.to_full_wire()
    try:
        request = store.read_request(row.run_id)
    except SubagentError:
        return wire
    named = request.agent.get("model")
    model = named if isinstance(named, str) and len(named) <= MAX_TASK_CHARACTERS else None
    if request.agent.get("runner") in (None, "messages"):
        model = resolve_model(model)
    cwd = request.cwd if len(request.cwd) <= MAX_TASK_CHARACTERS else None
    return wire | {name: value for name, value in {"model": model, "cwd": cwd}.items() if value is not None}


def _print(text: str) -> None:
    if text:
        out(text)


def _remark(session: Session, found: _Found) -> None:
    """Print a remark on runs that the list does not show, for people only."""
    if not found.rows and not found.has_more:
        everything = RunList(RunStore(session.settings.runs_root), caller=session.caller)
        if any(islice(everything.every(), 1)):
            err("No run fits: `subagent ls -a` lists all.")
            return
        is_missing = not session.settings.runs_root.exists() and session.named_root is not None
        there = "There is no directory" if is_missing else "No runs in"
        err(f"{there} {session.settings.runs_root}: `subagent run AGENT PROMPT` starts a run.")
        return
    if not is_terminal(sys.stderr):
        return
    if asking := sum(bool(row.pending_questions) for row in found.listing.active):
        err(f"{asking} need{'s' if asking == 1 else ''} an answer: `{session.command('inbox')}`")
    if found.has_more:
        err(f"There are more: `{session.command('ls', '-a')}`")
