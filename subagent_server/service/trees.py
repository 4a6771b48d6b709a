"""Whole trees of runs for people: each run reconciled, with the cost of the run and all runs below.

Tested in `tests/cli/test_trees.py`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from subagent_server.domain.errors import SubagentError
from subagent_server.domain.records import Usage
from subagent_server.service.access import USER, Caller
from subagent_server.service.context import Service
from subagent_server.service.open_run import open_run
from subagent_server.service.run_row import RunRow, row_of
from subagent_server.service.tree_usage import tree_usage


@dataclass(frozen=True)
class TreeRow:
    """A run in its tree: its row, its parent, and the cost of the run and all runs below."""

    run: RunRow
    parent_run_id: str | None = None
    with_descendants: Usage = field(default_factory=Usage)

    def to_wire(self) -> dict[str, Any]:
        """Return the JSON object of the row."""
        parent = {} if self.parent_run_id is None else {"parentRunId": self.parent_run_id}
        usage = self.with_descendants.model_dump(mode="json", exclude_none=True)
        return {**self.run.to_wire(), **parent, "withDescendants": usage}


@dataclass
class Node:
    """A run and its children, in the order of their starts."""

    row: TreeRow
    children: "list[Node]" = field(default_factory=list)

    def walk(self, depth: int = 0) -> "Iterator[tuple[int, TreeRow]]":
        """Yield this run and all below it with their depth, a parent before its children."""
        yield depth, self.row
        for child in self.children:
            yield from child.walk(depth + 1)

    def to_wire(self) -> dict[str, Any]:
        """Return the JSON object of the run, with those of its `children`."""
        return {**self.row.to_wire(), "children": [child.to_wire() for child in self.children]}


def trees_of(service: Service, run_ids: Iterable[str], caller: Caller = USER) -> list[Node]:
    """Return the whole trees of these runs, in the order of the first of each, as far as the caller sees."""
    trees: dict[str, Node] = {}
    for run_id in run_ids:
        top = _top(service, run_id, caller)
        if top not in trees:
            trees[top] = _grown(service, top, caller)
    return list(trees.values())


def _top(service: Service, run_id: str, caller: Caller) -> str:
    """Return the highest run above this run that can be read and is open to the caller."""
    top, seen = run_id, {run_id}
    while True:
        try:
            above = service.store.read(top).parent_run_id
            if above is None or above in seen or not caller.may_open(service.store.read(above)):
                return top
        except SubagentError:
            return top
        seen.add(above)
        top = above


def _grown(service: Service, run_id: str, caller: Caller, depth: int = -1) -> Node:
    try:
        observed = open_run(service, run_id, caller)
        usage = tree_usage(service.store, observed.meta)
    except SubagentError as error:
        return Node(TreeRow(RunRow(run_id=run_id, unreadable=error.sentence)))
    meta = observed.meta
    row = TreeRow(row_of(service.store.paths, meta, observed.live), meta.parent_run_id, usage)
    below = service.store.children_of(run_id) if meta.depth > depth else []  # else the marks lead in a circle
    return Node(row, [_grown(service, i, caller, meta.depth) for i in below if _is_open(service, i, caller)])


def _is_open(service: Service, run_id: str, caller: Caller) -> bool:
    """Whether there is such a run, and the caller may see the run; the user sees unreadable runs too."""
    if not service.store.exists(run_id):
        return False
    try:
        return caller.may_open(service.store.read(run_id))
    except SubagentError:
        return not caller.is_child
