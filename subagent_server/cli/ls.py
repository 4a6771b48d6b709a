"""`subagent ls`: the runs, those that need a person first."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass

import click

from subagent_server.cli.flags import TEXT, json_option
from subagent_server.cli.output import is_terminal, out, out_json, talk
from subagent_server.cli.session import Session, pass_session
from subagent_server.cli.text import coloured, duration, look_of, one_line, table
from subagent_server.cli.tree import Node, branch, forest
from subagent_server.cli.watch import watch
from subagent_server.cli.watched_runs import Screen
from subagent_server.domain.states import Status
from subagent_server.service.status import RunRow, list_runs

LAST = 10
_EVERY = sys.maxsize
_SHORT = {"waiting": Status.WAITING, "replied": Status.REPLIED}
_NAMES = [status.value for status in Status] + list(_SHORT)
_LIMITS = (12, 32, 16, 6)
_HEADER = ("STATUS", "RUN", "AGENT", "TIME", "WHAT")


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
@click.option("-w", "--watch", "watching", is_flag=True, help="Stay, and show it anew as it changes.")
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
    each has cost; with --json it prints a line for each change. Ctrl-C ends the watching.
    """
    wanted = Wanted({_SHORT.get(n) or Status(n) for n in statuses}, agent, everything, count)
    if watching:
        screen = Screen(session, as_json)
        watch(session, lambda: screen.show(_trees(session, wanted)))
    trees = _trees(session, wanted) if as_tree else []
    if as_tree and as_json:
        out_json([tree.to_wire() for tree in trees])
        return
    rows = wanted.fitting(session)
    lines = [line for tree in trees for line in tree.walk()] if as_tree else list(wanted.lines(rows))
    if as_json:
        out_json([row.model_dump(mode="json", exclude_none=True) for _, row in lines])
    elif quiet:
        _print("\n".join(row.run_id for _, row in lines))
    else:
        _print(_table(lines))
        _remark(session, rows, len(lines))


@dataclass(frozen=True)
class Wanted:
    """Which runs are asked for."""

    statuses: set[Status]
    agent: str | None
    everything: bool
    count: int | None

    def fitting(self, session: Session) -> list[RunRow]:
        """Return the runs that fit."""
        rows = list_runs(session.service, agent=self.agent, limit=_EVERY, caller=session.caller)
        return [row for row in rows if not self.statuses or row.status in self.statuses]

    def lines(self, rows: list[RunRow]) -> Iterator[tuple[int, RunRow]]:
        """Yield those of them that are shown; none stands below another."""
        shown = rows[: self.count] if self.count is not None else rows if self.everything else recent(rows)
        return ((0, row) for row in shown)


def _trees(session: Session, wanted: Wanted) -> list[Node]:
    """Return the whole trees of the runs that are shown, in the order of these."""
    shown = [row for _, row in wanted.lines(wanted.fitting(session))]
    ids = {row.run_id for row in shown}
    every = list_runs(session.service, limit=_EVERY, caller=session.caller)
    trees = forest([*shown, *(row for row in every if row.run_id not in ids)])
    return [tree for tree in trees if ids & {row.run_id for row in tree.rows()}]


def recent(rows: list[RunRow]) -> list[RunRow]:
    """Return the runs that are not over, in their order, and the last few of the others."""
    over = [row for row in rows if is_over(row)]
    return [row for row in rows if not is_over(row)] + over[:LAST]


def is_over(row: RunRow) -> bool:
    """Whether nothing is going on in a run, or nobody can say."""
    return row.status is None or (row.status.is_terminal and not row.live)


def _table(lines: list[tuple[int, RunRow]]) -> str:
    if not lines:
        return ""
    rows = [row for _, row in lines]
    cells = [_HEADER, *(_cells(row, depth) for depth, row in lines)]
    header, *drawn = table(cells, _LIMITS)
    looks = [look_of(row.status, row.pending_questions, row.live) for row in rows]
    return "\n".join(
        [
            header,
            *(
                line.replace(look.text, coloured(look.text, look.colour), 1)
                for line, look in zip(drawn, looks, strict=True)
            ),
        ]
    )


def _cells(row: RunRow, depth: int) -> tuple[str, ...]:
    look = look_of(row.status, row.pending_questions, row.live)
    if row.unreadable is not None:
        return (look.text, row.run_id, "", "", one_line(row.unreadable))
    time = "" if row.elapsed_seconds is None else duration(row.elapsed_seconds)
    slot = "waits for a slot" if row.waiting_for_slot else None
    what = " · ".join(one_line(text) for text in (row.label, slot, row.summary) if text)
    return (look.text, row.run_id, branch(depth) + one_line(row.agent or ""), time, what)


def _print(text: str) -> None:
    if text:
        out(text)


def _remark(session: Session, rows: list[RunRow], shown: int) -> None:
    """Say what the list does not show: to people only."""
    if not rows:
        talk(f"No runs in {session.settings.runs_root}: `subagent run AGENT PROMPT` starts one.")
        return
    if not is_terminal(sys.stderr):
        return
    if asking := sum(bool(row.pending_questions) for row in rows):
        talk(f"{asking} need{'s' if asking == 1 else ''} an answer: `{session.command('inbox')}`")
    if (hidden := len(rows) - shown) > 0:
        talk(f"{hidden} more: `{session.command('ls', '-a')}`")
