"""The runs that one run has started, and those that they have started: walking them, and what they cost.

A state on disk holds what a tree had cost at its last transition (`withDescendants`); live figures come from
the journals of what still works (SPEC section 4).
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
    """Write into a run that has ended, and into those above it that have, the cost of all runs below.

    A run that has not ended adds it up itself when it ends: it writes its end first and looks at its children
    second, a child the other way round, so one of the two sees the other.

    Raises:
        SubagentError: a state cannot be read or written. The next call for the tree writes it.
    """
    above: str | None = run_id
    seen: set[str] = set()
    while above is not None and above not in seen:
        seen.add(above)
        meta = store.read(above)
        if not meta.status.is_terminal:
            return
        usage = meta.usage.merged(recorded_usage(store.paths.run(above)) if above == run_id else None)
        below = meta.with_descendants.less(meta.usage).merged(store.usage_below(above))
        if (usage, usage.plus(below)) != (meta.usage, meta.with_descendants):
            store.update(above, events.UsageSettled(usage=usage), now())
        above = meta.parent_run_id


def children(store: RunStore, meta: RunMeta) -> Iterator[RunMeta]:
    """Yield the states of the runs that this one started, oldest first; what cannot be read is left out.

    Marks and states are data: a run that does not name this one as its parent is none of its children.
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
    """Return what a run has cost up to now, alone: by its journal while it works."""
    if meta.status.is_terminal:
        return meta.usage
    return meta.usage.merged(recorded_usage(store.paths.run(meta.run_id)))


def tree_usage(store: RunStore, meta: RunMeta) -> Usage:
    """Return what a run and all below it have cost up to now.

    The state of one that has ended says it; only what works is walked.
    """
    if meta.status.is_terminal:
        return meta.with_descendants
    below = Usage()
    for child in children(store, meta):
        below = below.plus(tree_usage(store, child))
    return usage_now(store, meta).plus(meta.with_descendants.less(meta.usage).merged(below))


def tree_cost(store: RunStore, root: str) -> Decimal:
    """Return what a run and all below it have cost up to now, in USD; models without a price cost nothing.

    Raises:
        InvalidRunId, UnknownRun, UnreadableMeta: of `root`.
    """
    return tree_usage(store, store.read(root)).cost_usd or Decimal(0)
