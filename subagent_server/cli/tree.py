"""Lists of runs as trees: who started whom, and which tree needs a person first."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from subagent_server.service.status import RunRow

_INDENT = "  "


@dataclass
class Node:
    """A run in its tree."""

    row: RunRow
    children: "list[Node]" = field(default_factory=list)

    def walk(self, depth: int = 0) -> "Iterator[tuple[int, RunRow]]":
        """Yield this run and all below it with their depth, a parent before its children."""
        yield depth, self.row
        for child in self.children:
            yield from child.walk(depth + 1)

    def to_wire(self) -> dict[str, Any]:
        """Return the JSON object of the run, with those of its `children`."""
        row = self.row.model_dump(mode="json", exclude_none=True)
        return {**row, "children": [child.to_wire() for child in self.children]}

    def rows(self) -> list[RunRow]:
        """Return this run and all below it."""
        return [row for _, row in self.walk()]


def forest(rows: Iterable[RunRow]) -> list[Node]:
    """Return the trees of these runs, in the order of the first of each; children stand as they were started.

    A run whose parent is not among them begins a tree.
    """
    nodes = {row.run_id: Node(row) for row in rows}
    tops: dict[str, Node] = {}
    for node in nodes.values():
        top, seen = node, {node.row.run_id}
        while (above := nodes.get(top.row.parent_run_id or "")) is not None and above.row.run_id not in seen:
            seen.add(above.row.run_id)
            top = above
        tops[top.row.run_id] = top
    for node in sorted(nodes.values(), key=lambda each: each.row.run_id):
        parent = nodes.get(node.row.parent_run_id or "")
        if parent is not None and node.row.run_id not in tops:
            parent.children.append(node)
    return list(tops.values())


def branch(depth: int) -> str:
    """Return what stands before the name of a run at this depth."""
    return "" if depth == 0 else f"{_INDENT * (depth - 1)}└ "
