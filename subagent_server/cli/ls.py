"""`subagent ls`: list runs, those that need a person first, or whole trees of them."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import chain, islice
from typing import Any, NoReturn

import click

from subagent_server.cli.console.app import Session, complete_agents, json_session, report
from subagent_server.cli.console.option_types import TEXT, Count
from subagent_server.cli.console.terminal import (
    Look,
    coloured,
    cost_cell,
    cut,
    duration,
    err,
    is_dumb,
    is_terminal,
    line_width,
    look_of,
    one_line,
    out,
    out_json,
    run_cell,
    table,
    tokens_cell,
)
from subagent_server.run.errors import SubagentError, UnreadableMeta
from subagent_server.run.journal import latest_doing
from subagent_server.run.paths import RootPaths
from subagent_server.run.states import Status
from subagent_server.run.store import RunStore, read_request
from subagent_server.verbs.flow_calls import calls_of_flow, phases
from subagent_server.verbs.list_runs import ONLY_NEWEST, Node, RunFilter, RunList, trees_of
from subagent_server.verbs.views import RunRow

LAST = 10
MAX_TASK_CHARACTERS = 4_096
"""Characters of the model and the directory of a task, which are data: no directory is longer."""
_SHORT = {"waiting": Status.WAITING, "replied": Status.REPLIED}
_NAMES = [status.value for status in Status] + list(_SHORT)
_LIMITS = (12, 32, 16, 4, 6)
_HEADER = ("STATUS", "RUN", "AGENT", "AGE", "TIME", "WHAT")
_TREE_LIMITS = (12, 32, 18, 6, 6, 8)
_TREE_HEADER = ("STATUS", "RUN", "AGENT", "TIME", "TOKENS", "COST", "WHAT")
GROUPS = ("needs you", "working", "done")
Line = tuple[Look | None, tuple[str, ...]]
"""The cells of a line of a table; the first of a run is its look."""


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
@click.option(
    "--agent", type=TEXT, metavar="NAME", shell_complete=complete_agents, help="Only runs of this agent."
)
@click.option("-n", "count", type=Count(min=0), metavar="N", help="List N runs at most.")
@click.option("-q", "--quiet", is_flag=True, help="Print ids only.")
@click.option("--tree", "as_tree", is_flag=True, help="Show whole trees: below each run those it started.")
@click.option("-w", "--watch", "watching", is_flag=True, help="Stay, and show the trees as they change.")
@json_session
def ls(
    session: Session,
    everything: bool,
    statuses: tuple[str, ...],
    agent: str | None,
    count: int | None,
    quiet: bool,
    as_tree: bool,
    watching: bool,
) -> None:
    """List runs: those that need you, those that work, the last that ended.

    Without -a or -n: every run that has not ended and the last 10 of the others. A run whose state cannot be
    read is listed as such. --watch groups whole trees by whether they need you, work or are done, with what
    each has cost; on a terminal it takes keys (`?` lists them). With --json it prints a line for each change.
    Ctrl-C ends the watching.
    """
    if watching and quiet:
        raise click.UsageError("--quiet prints ids once and --watch stays: leave one of them out.")
    wanted = RunFilter(frozenset(_SHORT.get(name) or Status(name) for name in statuses), agent)
    store = RunStore(session.settings.runs_root)

    def found() -> tuple[RunList, list[RunRow], bool]:
        """Return the list, the rows of it to show, and whether there are more."""
        listing = RunList(store, wanted, session.caller, whole=everything)
        rows = listing.every() if count is not None else chain(listing.active, listing.over())
        most = count if count is not None else None if everything else len(listing.active) + LAST
        some = list(islice(rows, None if most is None else most + 1))
        return listing, some[:most], most is not None and len(some) > most

    if watching:
        _watch(session, lambda: [row.run_id for row in found()[1]])
    listing, rows, has_more = found()
    trees = trees_of(session.service, (row.run_id for row in rows), session.caller) if as_tree else []
    if quiet:
        ids = [row.run_id for row in ([each.run for _, each in _walk(trees)] if as_tree else rows)]
        (out_json if session.as_json else _out_lines)(ids)
    elif session.as_json:
        out_json([tree.to_wire() for tree in trees] if as_tree else [_wire(store, row) for row in rows])
    else:
        _out_lines(_drawn(store, trees) if trees else _table(store, rows))
        if not trees:
            _remark(session, listing, rows, has_more=has_more)
    if listing.is_cut:
        report(f"{ONLY_NEWEST}: `{session.command('ls', '-a')}` looks at every one.")


def _table(store: RunStore, rows: list[RunRow]) -> list[str]:
    return _lines(_HEADER, [_cells(store, row) for row in rows], _LIMITS) if rows else []


def _cells(store: RunStore, row: RunRow) -> Line:
    look = look_of_row(row)
    time = "" if row.elapsed_seconds is None else duration(row.elapsed_seconds)
    agent = one_line(row.agent or "")
    return look, (look.text, run_cell(row.run_id), agent, age_cell(row), time, what_cell(store.paths, row))


def _lines(header: tuple[str, ...], lines: Sequence[Line], limits: Sequence[int]) -> list[str]:
    """Return a table, with its statuses in their colours; on a terminal each line fits."""
    looks = [None, *(look for look, _ in lines)]
    texts = table([header, *(cells for _, cells in lines)], limits)
    if is_terminal(sys.stdout):
        texts = [cut(text, line_width()) for text in texts]
    return [
        text if look is None else text.replace(look.text, coloured(look.text, look.colour), 1)
        for look, text in zip(looks, texts, strict=True)
    ]


def _out_lines(lines: list[str]) -> None:
    if lines:
        out("\n".join(lines))


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
    if request.runner == "messages":
        model = resolve_model(model)
    cwd = request.cwd if len(request.cwd) <= MAX_TASK_CHARACTERS else None
    return wire | {name: value for name, value in {"model": model, "cwd": cwd}.items() if value is not None}


def _remark(session: Session, listing: RunList, rows: list[RunRow], *, has_more: bool) -> None:
    """Print a remark on runs that the list does not show, for people only."""
    if not rows and not has_more:
        if any(islice(RunList(RunStore(session.settings.runs_root), caller=session.caller).every(), 1)):
            err("No run fits: `subagent ls -a` lists all.")
            return
        is_missing = not session.settings.runs_root.exists() and session.named_root is not None
        there = "There is no directory" if is_missing else "No runs in"
        err(f"{there} {session.settings.runs_root}: `subagent run AGENT PROMPT` starts a run.")
    elif is_terminal(sys.stderr):
        if asking := sum(bool(row.pending_questions) for row in listing.active):
            err(f"{asking} need{'s' if asking == 1 else ''} an answer: `{session.command('inbox')}`")
        if has_more:
            err(f"There are more: `{session.command('ls', '-a')}`")


# -- The cells that every list of runs shares.


def look_of_row(row: RunRow) -> Look:
    """Return how the status of a row is shown."""
    return look_of(row.status, row.pending_questions, row.live)


def age_cell(row: RunRow) -> str:
    """Return how long ago the run was made, in one unit: `41s`, `3m`, `2d`."""
    if row.created_at is None:
        return ""
    words = duration((datetime.now(UTC) - row.created_at).total_seconds())
    return words[: next(index + 1 for index, c in enumerate(words) if c.isalpha())]


def what_cell(root: RootPaths, row: RunRow) -> str:
    """Return the cell WHAT: the label of the run, and its question, result, present step or task."""
    if row.unreadable is not None:
        return one_line(row.unreadable)
    slot = "waits for a slot" if row.waiting_for_slot else None
    run = root.run(row.run_id)
    report = None if row.pending_questions else row.summary  # older than the question
    what = report or row.live_reason or slot or latest_doing(run)
    if not what:  # it has not begun, or never did
        with suppress(UnreadableMeta):
            what = read_request(run).prompt
    node = f"on {row.node}" if row.node and not row.is_over else None
    return " · ".join(one_line(text) for text in (row.label, node, what) if text)


# -- Trees of runs: `ls --tree` and `ls --watch`.


def _watch(session: Session, run_ids: Callable[[], list[str]]) -> NoReturn:
    """Show trees as they change; at a terminal with a person, on a screen that takes keys."""
    takes_keys = is_terminal(sys.stdin) and is_terminal(sys.stdout) and not is_dumb()
    if takes_keys and not session.as_json:
        from subagent_server.cli.console.live_screen import LiveScreen

        LiveScreen(session, run_ids).show()
    from subagent_server.cli.console.follow import watch  # a plain list waits for no watcher

    last: list[Node] | None = None

    def show() -> None:
        """Show the trees as they are now, unless only time has passed."""
        nonlocal last
        trees = trees_of(session.service, run_ids(), session.caller)
        without_time = {"elapsed_seconds": None}
        lasting = [
            Node(each.run.model_copy(update=without_time), each.with_descendants) for _, each in _walk(trees)
        ]
        if lasting == last:
            return
        last = lasting
        if session.as_json:
            out_json([tree.to_wire() for tree in trees], indent=None)
        else:
            out("\n".join(_frame(session, trees)))

    watch(session, show)


def _frame(session: Session, trees: list[Node]) -> Iterator[str]:
    if not trees:
        yield f"No runs in {one_line(str(session.settings.runs_root))}.\n"
    for name in GROUPS:
        if group := [tree for tree in trees if group_of(tree) == name]:
            yield f"{name} ({len(group)})"
            yield from [*_drawn(session.service.store, group), ""]


def _walk(trees: Iterable[Node]) -> Iterator[tuple[int, Node]]:
    return chain.from_iterable(tree.walk() for tree in trees)


def group_of(tree: Node) -> str:
    """Return the group of a tree, which its most urgent run decides."""
    runs = [each.run for _, each in tree.walk()]
    if any(run.pending_questions for run in runs):
        return "needs you"
    return "working" if any(not run.is_over for run in runs) else "done"


def _drawn(store: RunStore, trees: Iterable[Node]) -> list[str]:
    """Return a header and a line for each run, children indented below their parent.

    Below a flow are its phases, and before each run that it has called is what the call became.
    """
    lines: list[Line] = []
    states: dict[str, str] = {}
    for depth, node in _walk(trees):
        lines.append(_tree_cells(store.paths, depth, node, states.get(node.run.run_id)))
        calls = calls_of_flow(store, node.run.run_id)
        states |= {call.called_run_id: call.state for call in calls if call.called_run_id is not None}
        for title, _ in phases(calls):
            lines.append((None, ("", "", branch(depth + 1) + "phase", "", "", "", one_line(title))))
    return _lines(_TREE_HEADER, lines, _TREE_LIMITS)


def _tree_cells(root: RootPaths, depth: int, node: Node, state: str | None) -> Line:
    row, usage, look = node.run, node.with_descendants, look_of_row(node.run)
    run, what = run_cell(row.run_id), " · ".join(filter(None, (state, what_cell(root, row))))
    if row.unreadable is not None:
        return look, (look.text, run, "", "", "", "", what)
    agent, time = branch(depth) + one_line(row.agent or ""), duration(row.elapsed_seconds or 0)
    return look, (look.text, run, agent, time, tokens_cell(usage), cost_cell(usage), what)


def branch(depth: int) -> str:
    """Return what comes before the agent of a run that another started."""
    return "" if depth == 0 else f"{'  ' * (depth - 1)}└ "
