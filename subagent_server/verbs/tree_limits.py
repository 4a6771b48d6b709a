"""Runs that start runs: which agents, how deep, and how many of one tree (SPEC section 6, "Recursion")."""

from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal

from subagent_server.run.agent_definition import AgentDefinition
from subagent_server.run.errors import RunRefused, SubagentError
from subagent_server.run.locks import exclusive
from subagent_server.run.records import RunMeta
from subagent_server.run.states import dollars
from subagent_server.run.store import RunStore
from subagent_server.verbs.access import Caller, NotAllowed
from subagent_server.verbs.reconcile import observe, tree_cost
from subagent_server.verbs.service import Service

# -- The budgets that bound a run: its own and the budgets of the runs above, each over a whole tree.


@dataclass(frozen=True)
class Budget:
    """The budget of a run, in USD: the most that the run and all runs below may cost together."""

    run_id: str
    usd: Decimal


def budgets_of(store: RunStore, meta: RunMeta, *, of_flows: bool = True) -> list[Budget]:
    """Return the budgets that bound a run, its own first, then the budgets of the runs above.

    The budget of a flow bounds the starts of runs below it, and not their model calls (not `of_flows`): what
    is begun is paid for, and its result is kept.

    Budgets are in `request.json`, which never changes, so they are looked up once. An unreadable run above
    bounds nothing: its end has ended this run, or is about to.
    """
    found: list[Budget] = []
    with suppress(SubagentError):
        for run in (meta, *store.above(meta)):
            request = store.read_request(run.run_id)
            usd = _budget_of(request.agent)
            if usd is not None and (of_flows or request.runner != "flow"):
                found.append(Budget(run.run_id, usd))
    return found


def exhausted(store: RunStore, budgets: list[Budget]) -> str | None:
    """Return a sentence naming the budget used up by its tree, or None if all budgets have money left."""
    for budget in budgets:
        with suppress(SubagentError):
            why = used_up(budget, tree_cost(store, budget.run_id))
            if why is not None:
                return why
    return None


def refuse_spent(why: str | None) -> None:
    """Called before a model is called, with what `exhausted` or `used_up` has returned.

    Raises:
        RunRefused: `budget`.
    """
    if why is not None:
        raise RunRefused(
            "budget", why, "Raise `budgetUsd` (agent file or option), or give it a smaller task."
        )


def used_up(budget: Budget, cost: Decimal) -> str | None:
    """Return the same sentence about a budget whose tree has cost so much."""
    if cost < budget.usd:
        return None
    return (
        f"Run {budget.run_id} and those below it have used {dollars(cost)} of its budget of "
        f"{dollars(budget.usd)}."
    )


def _budget_of(agent: dict[str, object]) -> Decimal | None:
    limits = agent.get("limits")
    usd = limits.get("budgetUsd") if isinstance(limits, dict) else None
    try:
        return None if usd is None else Decimal(str(usd))
    except ArithmeticError:
        return None


class TreeFull(NotAllowed):
    """The tree of runs has as many live runs as it may: one of them has to end first."""


class BudgetSpent(NotAllowed):
    """The money of a run, or of a run above it, is spent: it starts nothing more."""


def agents_of(service: Service, run_id: str) -> set[str]:
    """Return the names of the agents that a run may start: its own agent file names them.

    Raises:
        UnreadableMeta: the request of the run cannot be read.
    """
    request = service.store.read_request(run_id)
    named = request.agent.get("agents")
    served = request.agents_from.served if request.agents_from is not None else []
    return {*map(str, named if isinstance(named, list) else []), *served}


def check_may_delegate(service: Service, caller: Caller) -> None:
    """Refuse the parent tools to a child whose agent may not start others.

    Raises:
        NotAllowed.
    """
    if caller.run_id is not None and not agents_of(service, caller.run_id):
        raise NotAllowed(
            f"The agent of run {caller.run_id} may start no other agents, so the tools for them are "
            "not open to it: do the work here, or ask your parent with ask_parent."
        )


def check_may_start(service: Service, caller: Caller, agent: AgentDefinition) -> RunMeta | None:
    """Return the run that wants to start `agent`, or None if the user's side does.

    Raises:
        NotAllowed: the file of the caller's agent does not name `agent`, or the tree of runs has reached its
            depth, its size or its budget.
    """
    if caller.run_id is None:
        return None
    allowed = agents_of(service, caller.run_id)
    if agent.name not in allowed:
        raise NotAllowed(
            f"The agent of run {caller.run_id} may not start {agent.name}: its file names "
            f"{', '.join(sorted(allowed)) or 'none'} under `agents`."
        )
    parent = service.store.read(caller.run_id)
    if parent.status.is_terminal:
        raise NotAllowed(f"Run {parent.run_id} is {parent.status.value}, so it can start nothing more.")
    depth, limit = parent.depth, service.settings.max_depth
    if depth >= limit:
        raise NotAllowed(
            f"Run {parent.run_id} is {depth} level{'' if depth == 1 else 's'} below the first run, "
            f"and {limit} is the limit: "
            "do the work here instead of starting another agent (SUBAGENT_MAX_DEPTH sets the limit)."
        )
    most = _most_live(service, agent, depth + 1)
    live = _live_below(service, parent.root_run_id, most)
    if len(live) >= most:
        for run_id in live:  # who died without a reader counts no more
            with suppress(SubagentError):
                observe(service.store, run_id)
        _check_number(service, parent.root_run_id, most)
    if (why := exhausted(service.store, budgets_of(service.store, parent))) is not None:
        raise BudgetSpent(f"{why} No other agent is started for it: end with what there is.")
    return parent


_QUEUE_SECONDS = 60.0
"""How long a start waits for its turn: 32 siblings sync two files each, one after the other."""


def publish_counted(service: Service, meta: RunMeta, agent: AgentDefinition) -> None:
    """Publish a run; a child is counted in the same hold of its tree's lock.

    So runs started at the same moment, anywhere in the tree and by any run, never become too many.

    Raises:
        NotAllowed: the tree has reached its size.
        StorageFailed, LockTimeout: the machine refused. In each case there is no run.
    """
    if meta.parent_run_id is None:
        service.store.publish(meta)
        return
    with exclusive(service.store.paths.run(meta.root_run_id).tree_lock, _QUEUE_SECONDS):
        _check_number(service, meta.root_run_id, _most_live(service, agent, meta.depth))
        service.store.publish(meta)


def _most_live(service: Service, agent: AgentDefinition, depth: int) -> int:
    """Return how many runs of a tree may live for one more of this agent, at this depth.

    A program waits until one more may live. Runs that have programs leave room for one on each level below
    them: else flows that wait for one would be all that may live.
    """
    settings = service.settings
    has_programs = agent.enabled_code_mode is not None and bool(agent.agents)
    return max(1, settings.max_descendants - (settings.max_depth - depth if has_programs else 0))


def _check_number(service: Service, root_run_id: str, limit: int) -> None:
    alive = len(_live_below(service, root_run_id, limit))
    if alive >= limit:
        raise TreeFull(
            f"{alive} run{' is' if alive == 1 else 's are'} at work below {root_run_id}, and {limit} is the "
            "limit: wait for some to end, or do the work here (SUBAGENT_MAX_DESCENDANTS sets the limit)."
        )


def _live_below(service: Service, root_run_id: str, least: int) -> list[str]:
    """Return the live runs of a tree, without its first run; none if the root has less than `least`."""
    live = service.store.live_ids()
    return [
        meta.run_id
        for meta in service.store.readable(live if len(live) >= least else ())
        if meta.root_run_id == root_run_id != meta.run_id and not meta.status.is_terminal
    ]
