"""The budgets that bound a run: its own and the budgets of the runs above, each over a whole tree."""

from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal

from subagent_server.domain.errors import RunRefused, SubagentError
from subagent_server.domain.money import dollars
from subagent_server.domain.records import RunMeta
from subagent_server.service.tree_usage import tree_cost
from subagent_server.store.runs import RunStore


@dataclass(frozen=True)
class Budget:
    """The budget of a run, in USD: the most that the run and all runs below may cost together."""

    run_id: str
    usd: Decimal


def budgets_of(store: RunStore, meta: RunMeta) -> list[Budget]:
    """Return the budgets that bound a run, its own first, then the budgets of the runs above.

    Budgets stand in `request.json`, which never changes, so they are looked up once. An unreadable run above
    bounds nothing: its end has ended this run, or is about to.
    """
    found: list[Budget] = []
    above: str | None = meta.run_id
    for _ in range(meta.depth + 1):
        try:
            request = store.read_request(above or "")
        except SubagentError:
            break
        usd = _budget_of(request.agent)
        if usd is not None:
            found.append(Budget(request.run_id, usd))
        above = request.parent_run_id
        if above is None:
            break
    return found


def exhausted(store: RunStore, budgets: list[Budget]) -> str | None:
    """Return a sentence naming the budget used up by its tree, or None if all budgets have money left."""
    for budget in budgets:
        with suppress(SubagentError):
            why = _used_up(budget, tree_cost(store, budget.run_id))
            if why is not None:
                return why
    return None


def check_budgets(store: RunStore, budgets: list[Budget]) -> None:
    """Called before a model is called, with all budgets that bound the run.

    Raises:
        RunRefused: `budget`.
    """
    _refuse(exhausted(store, budgets))


def check_cost(budget: Budget, cost: Decimal) -> None:
    """Called with what the tree of a budget has cost, before a model is called.

    Raises:
        RunRefused: `budget`.
    """
    _refuse(_used_up(budget, cost))


def _used_up(budget: Budget, cost: Decimal) -> str | None:
    if cost < budget.usd:
        return None
    return (
        f"Run {budget.run_id} and those below it have used {dollars(cost)} of its budget of "
        f"{dollars(budget.usd)}."
    )


def _refuse(why: str | None) -> None:
    if why is not None:
        raise RunRefused("budget", why, "Raise `budgetUsd` in its agent file, or give it a smaller task.")


def _budget_of(agent: dict[str, object]) -> Decimal | None:
    limits = agent.get("limits")
    usd = limits.get("budgetUsd") if isinstance(limits, dict) else None
    try:
        return None if usd is None else Decimal(str(usd))
    except ArithmeticError:
        return None
