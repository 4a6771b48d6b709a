"""What `subagent ls --watch` shows: needs you, working, done, each tree with what it has cost."""

import shutil
import sys
from collections.abc import Iterator
from typing import Any

from subagent_server.cli.output import is_terminal, out, out_json
from subagent_server.cli.session import Session
from subagent_server.cli.text import coloured, duration, look_of, one_line, table
from subagent_server.cli.tree import Node, branch
from subagent_server.domain.errors import SubagentError
from subagent_server.service.status import RunRow
from subagent_server.service.tree import tree_usage

_HEADER = ("STATUS", "RUN", "AGENT", "TIME", "TOKENS", "COST", "WHAT")
_LIMITS = (12, 32, 18, 6, 8, 9)
_GROUPS = ("needs you", "working", "done")
_HOME, _TO_END_OF_LINE, _TO_END = "\x1b[H", "\x1b[K", "\x1b[J"


class Screen:
    """Draws frames: over each other on a terminal, else one after the other, where something has changed."""

    def __init__(self, session: Session, as_json: bool) -> None:
        self._session = session
        self._as_json = as_json
        self._last: Any = None
        self._is_fresh = True

    def show(self, trees: list[Node]) -> None:
        """Show the trees as they are now."""
        facts = [self._facts(depth, row) for tree in trees for depth, row in tree.walk()]
        lasting = [
            {name: value for name, value in each.items() if name != "elapsedSeconds"} for each in facts
        ]
        is_new, self._last = lasting != self._last, lasting
        if self._as_json:
            if is_new:
                out_json(facts, indent=None)
        elif is_terminal(sys.stdout):
            self._draw(list(self._frame(trees)))
        elif is_new:
            out("\n".join([*self._frame(trees), ""]))

    def _draw(self, lines: list[str]) -> None:
        """Draw over the frame before, without clearing it first, which would flicker."""
        height = shutil.get_terminal_size((80, 24)).lines - 1
        if len(lines) > height:
            lines = [*lines[: height - 1], f"… {len(lines) - height + 1} more lines"]
        start = "\x1b[2J" if self._is_fresh else ""
        self._is_fresh = False
        out(start + _HOME + "\n".join(line + _TO_END_OF_LINE for line in lines) + _TO_END)

    def _frame(self, trees: list[Node]) -> Iterator[str]:
        if not trees:
            yield f"No runs in {one_line(str(self._session.settings.runs_root))}."
        grouped = {name: [tree for tree in trees if group_of(tree) == name] for name in _GROUPS}
        lines = [(name, depth, row) for name in _GROUPS for t in grouped[name] for depth, row in t.walk()]
        header, *drawn = table([_HEADER, *(self._cells(depth, row) for _, depth, row in lines)], _LIMITS)
        above = None
        for (name, _, row), line in zip(lines, drawn, strict=True):
            if name != above:
                yield from ([""] if above else []) + [f"{name} ({len(grouped[name])})", header]
                above = name
            look = look_of(row.status, row.pending_questions, row.live)
            yield line.replace(look.text, coloured(look.text, look.colour), 1)

    def _cells(self, depth: int, row: RunRow) -> tuple[str, ...]:
        look = look_of(row.status, row.pending_questions, row.live)
        if row.unreadable is not None:
            return (look.text, row.run_id, "", "", "", "", one_line(row.unreadable))
        usage = self._usage(row)
        tokens = sum(value for name, value in usage.items() if name.endswith("Tokens"))
        cost = f"${usage['costUsd']}" if "costUsd" in usage else ""
        slot = "waits for a slot" if row.waiting_for_slot else None
        what = " · ".join(one_line(text) for text in (row.label, slot, row.summary) if text)
        agent = branch(depth) + one_line(row.agent or "")
        return (look.text, row.run_id, agent, duration(row.elapsed_seconds or 0), f"{tokens:,}", cost, what)

    def _facts(self, depth: int, row: RunRow) -> dict[str, Any]:
        row_facts = row.model_dump(mode="json", exclude_none=True)
        return {**row_facts, "depth": depth, "withDescendants": self._usage(row)}

    def _usage(self, row: RunRow) -> dict[str, Any]:
        """Return what a run and all below it have cost up to now, without the figures that are nothing."""
        try:
            usage = tree_usage(self._session.service.store, self._session.service.store.read(row.run_id))
        except SubagentError:
            return {}
        return {n: v for n, v in usage.model_dump(mode="json", exclude_none=True).items() if v}


def group_of(tree: Node) -> str:
    """Return where a tree stands: with what its most urgent run needs."""
    rows = tree.rows()
    if any(row.pending_questions for row in rows):
        return "needs you"
    works = any(row.status is not None and (not row.status.is_terminal or row.live) for row in rows)
    return "working" if works else "done"
