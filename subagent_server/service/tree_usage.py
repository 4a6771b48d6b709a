"""The tree of runs below a run, children and their children: walking the tree, and its cost.

A state on disk holds the cost of a tree at its last transition (`withDescendants`); live figures come from
the journals of the runs still working (SPEC section 4).
"""

from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal

from subagent_server.domain import events
from subagent_server.domain.errors import SubagentError
from subagent_server.domain.records import RunMeta, Usage
from subagent_server.host.clock import now
from subagent_server.store.logs import recorded_usage
from subagent_server.store.runs import RunStore


def record_tree_usage(store: RunStore, run_id: str) -> None:
    """Write the cost of all runs below into an ended run, and into all ended runs above.

    A live run adds up the cost itself at its end. The run writes its end first and looks at its children
    second, a child the other way round: so at least one of the two sees the other.

    Raises:
        SubagentError: a state cannot be read or written. The next call for the tree writes the cost.
    """
    above: str | None = run_id
    seen: set[str] = set()
    while above is not None and above not in seen:
        seen.add(above)
        meta = store.read(above)
        if not meta.status.is_terminal:
            return
        usage = meta.usage.merged(recorded_usage(store.paths.run(above)) if above == run_id else None)
        below = meta.with_descendants.less(meta.usage).caught_up(store.usage_below(above))
        if (usage, usage.plus(below)) != (meta.usage, meta.with_descendants):
            store.update(above, events.UsageSettled(usage=usage), now())
        above = meta.parent_run_id


def children(store: RunStore, meta: RunMeta) -> Iterator[RunMeta]:
    """Yield the states of the runs started by this run, oldest first; unreadable states are left out.

    Marks and states are data: a run that does not name this run as its parent is not its child.
    """
    for run_id in store.children_of(meta.run_id):
        with suppress(SubagentError):  # a start that never was, or one that the doctor lists
            child = store.read(run_id)
            if child.parent_run_id == meta.run_id and child.depth > meta.depth:
                yield child


def subtree(store: RunStore, meta: RunMeta) -> Iterator[RunMeta]:
    """Yield the state of a run and of all below it, a parent before its children."""
    yield meta
    for child in children(store, meta):
        yield from subtree(store, child)


def usage_now(store: RunStore, meta: RunMeta) -> Usage:
    """Return the cost of a run up to now, alone: by its journal while working."""
    if meta.status.is_terminal:
        return meta.usage
    return meta.usage.merged(recorded_usage(store.paths.run(meta.run_id)))


def tree_usage(store: RunStore, meta: RunMeta) -> Usage:
    """Return the cost of a run and all runs below up to now.

    The state of an ended run gives the figure; only working runs are walked.
    """
    if meta.status.is_terminal:
        return meta.with_descendants
    below = Usage()
    for child in children(store, meta):
        below = below.plus(tree_usage(store, child))
    return usage_now(store, meta).plus(meta.with_descendants.less(meta.usage).caught_up(below))


def tree_cost(store: RunStore, root: str) -> Decimal:
    """Return the cost of a run and all runs below up to now, in USD; models without a price cost nothing.

    Raises:
        InvalidRunId, UnknownRun, UnreadableMeta: of `root`.
    """
    return tree_usage(store, store.read(root)).cost_usd or Decimal(0)
