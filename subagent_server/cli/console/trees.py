"""Trees of runs on a terminal: `ls --tree` and `ls --watch`."""

import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, NoReturn

from subagent_server.cli.console.colours import coloured
from subagent_server.cli.console.follow import watch
from subagent_server.cli.console.output import is_terminal, out, out_json
from subagent_server.cli.console.row_cells import run_cell, what_cell
from subagent_server.cli.console.session import Session
from subagent_server.cli.console.text import UNKNOWN, cut, duration, line_width, look_of, one_line, table
from subagent_server.domain.figures import TOKENS, least_mark
from subagent_server.domain.money import dollars
from subagent_server.service.trees import Node, TreeRow, trees_of
from subagent_server.store.paths import RootPaths

_HEADER = ("STATUS", "RUN", "AGENT", "TIME", "TOKENS", "COST", "WHAT")
_LIMITS = (12, 32, 18, 6, 6, 8)
GROUPS = ("needs you", "working", "done")
_HOME, _TO_END_OF_LINE, _TO_END = "\x1b[H", "\x1b[K", "\x1b[J"


def show_trees(session: Session, run_ids: list[str], *, quiet: bool, as_json: bool) -> None:
    """Print the trees of these runs: drawn, as ids only, or as JSON with nested `children`."""
    trees = trees_of(session.service, run_ids, session.caller)
    if as_json:
        out_json([tree.to_wire() for tree in trees])
    elif quiet:
        out("\n".join(row.run.run_id for tree in trees for _, row in tree.walk()))
    else:
        out("\n".join(drawn(session.service.store.paths, trees)))


def watch_trees(session: Session, run_ids: Callable[[], list[str]], *, as_json: bool) -> NoReturn:
    """Show the trees of the runs that `run_ids` names, as they change, until Ctrl-C."""
    screen = TreeScreen(session, as_json=as_json)
    watch(session, lambda: screen.show(trees_of(session.service, run_ids(), session.caller)))


def drawn(root: RootPaths, trees: Iterable[Node]) -> list[str]:
    """Return a header and a line for each run, children indented below their parent."""
    lines = [line for tree in trees for line in tree.walk()]
    header, *rows = table([_HEADER, *(_cells(root, depth, row) for depth, row in lines)], _LIMITS)
    return [
        cut(header, line_width()),
        *(_coloured(row, text) for (_, row), text in zip(lines, rows, strict=True)),
    ]


def group_of(tree: Node) -> str:
    """Return the group of a tree, which its most urgent run decides."""
    rows = [row for _, row in tree.walk()]
    if any(row.run.pending_questions for row in rows):
        return "needs you"
    return "working" if any(not row.run.is_over for row in rows) else "done"


class TreeScreen:
    """Prints trees repeatedly: over the last frame on a terminal, else a new frame after each change."""

    def __init__(self, session: Session, *, as_json: bool) -> None:
        self._session = session
        self._as_json = as_json
        self._last: Any = None
        self._is_fresh = True

    def show(self, trees: list[Node]) -> None:
        """Show the trees as they are now."""
        lasting = [
            replace(row, run=replace(row.run, elapsed_seconds=None))
            for tree in trees
            for _, row in tree.walk()
        ]
        is_new, self._last = lasting != self._last, lasting
        if is_terminal(sys.stdout) and not self._as_json:
            self._draw(list(self._frame(trees)))
        elif is_new and self._as_json:
            out_json([tree.to_wire() for tree in trees], indent=None)
        elif is_new:
            out("\n".join([*self._frame(trees), ""]))

    def _frame(self, trees: list[Node]) -> Iterator[str]:
        if not trees:
            yield f"No runs in {one_line(str(self._session.settings.runs_root))}."
        above = False
        for name in GROUPS:
            if group := [tree for tree in trees if group_of(tree) == name]:
                yield from [""] if above else []
                yield f"{name} ({len(group)})"
                yield from drawn(self._session.service.store.paths, group)
                above = True

    def _draw(self, lines: list[str]) -> None:
        """Draw over the previous frame without clearing it first, which would flicker."""
        height = shutil.get_terminal_size((80, 24)).lines - 1
        if len(lines) > height:
            lines = [*lines[: height - 1], f"… {len(lines) - height + 1} more lines"]
        start = "\x1b[2J" if self._is_fresh else ""
        self._is_fresh = False
        out(start + _HOME + "\n".join(line + _TO_END_OF_LINE for line in lines) + _TO_END)


def _cells(root: RootPaths, depth: int, of_tree: TreeRow) -> tuple[str, ...]:
    row, usage = of_tree.run, of_tree.with_descendants
    look = look_of(row.status, row.pending_questions, row.live)
    run, what = run_cell(row.run_id), what_cell(root, row)
    if row.unreadable is not None:
        return (look.text, run, "", "", "", "", what)
    cost = "" if usage.cost_usd is None else least_mark(usage.at_least, "costUsd") + dollars(usage.cost_usd)
    mark, tokens = least_mark(usage.at_least, *TOKENS), usage.tokens
    told = UNKNOWN if tokens is None else mark + _short(tokens)
    agent = _branch(depth) + one_line(row.agent or "")
    return (look.text, run, agent, duration(row.elapsed_seconds or 0), told, cost, what)


def _coloured(row: TreeRow, line: str) -> str:
    look = look_of(row.run.status, row.run.pending_questions, row.run.live)
    return cut(line, line_width()).replace(look.text, coloured(look.text, look.colour), 1)


def _branch(depth: int) -> str:
    return "" if depth == 0 else f"{'  ' * (depth - 1)}└ "


def _short(number: int) -> str:
    """Return a number in six characters at most: `940`, `4.3k`, `126k`, `1.2M`."""
    if number < 1000:
        return str(number)
    unit, size = ("k", 1e3) if number < 999_500 else ("M", 1e6)
    return f"{number / size:.{0 if number >= 10 * size else 1}f}{unit}"
