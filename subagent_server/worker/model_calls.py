"""Model calls of runs with budgets: so many at a time as what is left of the money has room for.

What a call costs is known when it is over. So a tree whose runs all call at once could use up its budget
several times before anybody saw it. Each that calls holds the lock of a file, which a kill gives back too.
Where others call, one more is let in only if all of them have room at the price of a call so far; a lone call
always is.
"""

from decimal import Decimal

from subagent_server.domain.errors import LockTimeout, StorageFailed, SubagentError
from subagent_server.domain.records import RunMeta, Usage
from subagent_server.host import locks
from subagent_server.host.exclusive import exclusive
from subagent_server.service.budget import Budget, budgets_of, check_budgets, check_cost
from subagent_server.service.tree_usage import subtree, tree_usage
from subagent_server.store.logs import recorded_usage
from subagent_server.store.paths import RunPaths
from subagent_server.store.runs import RunStore


class ModelCalls:
    """The model calls of one run, by its worker. There is one at a time."""

    def __init__(self, store: RunStore, run: RunPaths) -> None:
        self._store = store
        self._run = run
        self._gate: RunPaths | None = None
        self._budgets: list[Budget] | None = None
        self._mark: int | None = None

    @property
    def unbounded(self) -> bool:
        """Whether it is known that no budget bounds the calls, so that there is nothing to begin."""
        return self._budgets == []

    def begin(self) -> bool:
        """Begin a call, or return False where others that are under way may need what is left. Blocks.

        Raises:
            RunRefused: `budget`, where the money of the run, or of one above it, is spent.
            UnreadableMeta: of this run.
        """
        if self._budgets is None or self._gate is None:
            meta = self._store.read(self._run.run_id)
            self._budgets, self._gate = budgets_of(self._store, meta), self._store.paths.run(meta.root_run_id)
        if not self._budgets:
            return True
        try:
            with exclusive(self._gate.calls_lock):
                return self._admitted(self._budgets)
        except LockTimeout:
            return False
        except StorageFailed:  # a disk that refuses locks is no reason to end a run whose money is not spent
            check_budgets(self._store, self._budgets)
            return True

    def end(self) -> None:
        """The call is over, and what it cost is in the journal."""
        if self._mark is not None:
            locks.give_back(self._mark)
            self._mark = None

    def _admitted(self, budgets: list[Budget]) -> bool:
        if not all(self._has_room(budget) for budget in budgets):
            return False
        self._mark = _taken(self._run)
        return True

    def _has_room(self, budget: Budget) -> bool:
        try:
            first = self._store.read(budget.run_id)
        except SubagentError:
            return True  # what cannot be read bounds nothing: its end has ended this run, or is about to
        if first.status.is_terminal:
            return False  # what it knows of live runs is old by now; whoever has ended it ends this one
        calling, spent = self._now(first)
        cost = spent.cost_usd or Decimal(0)
        check_cost(budget, cost)
        return calling == 0 or (spent.turns > 0 and cost + (calling + 1) * cost / spent.turns <= budget.usd)

    def _now(self, first: RunMeta) -> tuple[int, Usage]:
        """Return how many of a tree call a model, and what all have used.

        Also a run that has ended may call, for some seconds, and what ended runs know of those below is old.
        """
        calling, walked = 0, Usage()
        for meta in subtree(self._store, first):
            run = self._store.paths.run(meta.run_id)
            calling += locks.is_held(run.call_lock)  # looked at first: a call is told before it is over
            walked = walked.plus(meta.usage.merged(recorded_usage(run)))
        return calling, walked.merged(tree_usage(self._store, first))


def _taken(run: RunPaths) -> int:
    try:
        descriptor = locks.open_lock(run.call_lock)
    except OSError as error:
        raise StorageFailed(run.call_lock.path, error.strerror or str(error)) from error
    locks.lock(descriptor)  # nobody else takes it: it is held for the moment of a probe at most
    return descriptor
