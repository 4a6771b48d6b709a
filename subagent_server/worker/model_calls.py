"""Model calls of runs with budgets: only as many at a time as the rest of the money has room for.

The cost of a call is known only afterwards. So a tree whose runs all call at once could use up its budget
several times before any run noticed. Each run that calls holds the lock of a file, which a kill releases too.
While others call, another call is admitted only if all of them have room at the mean price of a call so far;
a lone call is always admitted. This is the only place that holds a budget while runs work.
"""

from decimal import Decimal

from subagent_server.domain.errors import LockTimeout, StorageFailed, SubagentError
from subagent_server.domain.records import RunMeta, Usage
from subagent_server.host import locks
from subagent_server.host.locks import exclusive
from subagent_server.service.budget import Budget, budgets_of, check_budgets, check_cost
from subagent_server.service.tree_usage import subtree, tree_usage
from subagent_server.store.logs import recorded_usage
from subagent_server.store.paths import RunPaths
from subagent_server.store.runs import RunStore


class ModelCalls:
    """The model calls of a run, by its worker, one at a time."""

    def __init__(self, store: RunStore, run: RunPaths) -> None:
        self._store = store
        self._run = run
        self._gate: RunPaths | None = None
        self._budgets: list[Budget] | None = None
        self._lock: int | None = None
        self._spent = Usage()
        self._besides = Decimal(0)

    @property
    def unbounded(self) -> bool:
        """Whether the calls are known to have no budget: then they need not `begin`."""
        return self._budgets == []

    def begin(self, spent: Usage, besides: Decimal = Decimal(0)) -> bool:
        """Begin a call, or return False if calls of other runs may need the rest of a budget. Blocks.

        `spent` is the usage of this run so far; a full disk may have kept some of it out of the journal.
        `besides` is the possible cost of the call besides its tokens, such as its web searches.

        Raises:
            RunRefused: `budget`, if the money of the run, or of a run above it, is spent.
            UnreadableMeta: of this run.
        """
        if self._budgets is None or self._gate is None:
            meta = self._store.read(self._run.run_id)
            self._budgets, self._gate = budgets_of(self._store, meta), self._store.paths.run(meta.root_run_id)
        self._spent, self._besides = spent, besides
        if not self._budgets:
            return True
        try:
            with exclusive(self._gate.calls_lock):
                if not all(self._has_room(budget) for budget in self._budgets):
                    return False
                self._lock = _taken(self._run)
                return True
        except LockTimeout:
            return False
        except StorageFailed:  # a disk that refuses locks is no reason to end a run whose money is not spent
            check_budgets(self._store, self._budgets)
            for budget in self._budgets:
                check_cost(budget, spent.cost_usd or Decimal(0))
            return True

    def end(self) -> None:
        """End the call, whose cost is in the journal by now."""
        if self._lock is not None:
            locks.give_back(self._lock)
            self._lock = None

    def _has_room(self, budget: Budget) -> bool:
        """Whether another call fits into a budget beside the calls under way.

        Raises:
            RunRefused: `budget`, if the money is spent.
        """
        try:
            first = self._store.read(budget.run_id)
        except SubagentError:
            return True  # an unreadable run bounds nothing: its end has ended this run, or is about to
        if first.status.is_terminal:
            return False  # its figures of live runs are old by now; its end ends this run too
        calling, used = self._now(first)
        cost = used.cost_usd or Decimal(0)
        check_cost(budget, cost)
        if calling == 0:
            return True
        turns = used.turns or 0
        return turns > 0 and cost + (calling + 1) * cost / turns + self._besides <= budget.usd

    def _now(self, first: RunMeta) -> tuple[int, Usage]:
        """Return how many runs of a tree call a model, and their usage together.

        An ended run may still call for some seconds, and its figures of the runs below are old.
        """
        calling, walked = 0, Usage()
        for meta in subtree(self._store, first):
            run = self._store.paths.run(meta.run_id)
            calling += locks.is_held(run.call_lock)  # looked at first: its cost is recorded before it is over
            used = meta.usage.merged(recorded_usage(run))
            walked = walked.plus(used.merged(self._spent) if meta.run_id == self._run.run_id else used)
        return calling, walked.merged(tree_usage(self._store, first))


def _taken(run: RunPaths) -> int:
    try:
        descriptor = locks.open_lock(run.call_lock)
    except OSError as error:
        raise StorageFailed(run.call_lock.path, error.strerror or str(error)) from error
    locks.lock(descriptor)  # no other run takes it: a probe holds it for a moment at most
    return descriptor
