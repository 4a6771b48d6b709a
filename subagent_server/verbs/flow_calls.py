"""The calls of agents that a program has made, as lists show them: by phase, with state, cost and time.

They come from the journal of the run, which is data: what has not the form of a call is passed over.
"""

from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from decimal import Decimal

from pydantic import ValidationError

from subagent_server.run import durable
from subagent_server.run.errors import SubagentError
from subagent_server.run.processes import now
from subagent_server.run.records import Money, Record
from subagent_server.run.states import Status, dollars
from subagent_server.run.store import RunStore
from subagent_server.verbs.views import elapsed_seconds

KIND = "agent_call"
_MOST = 10_000


class FlowCall(Record):
    """One call. `state` says what became of it: `new`, `recorded`, `resumed` or `running`."""

    agent: str
    state: str
    label: str | None = None
    phase: str | None = None
    called_run_id: str | None = None
    status: Status | None = None
    seconds: float | None = None
    cost_usd: Money | None = None


def flow_calls(store: RunStore, run_id: str) -> list[FlowCall]:
    """Return the calls of agents that the programs of a run have made, in their order; at most 10,000."""
    found: list[FlowCall] = []
    for event in durable.records(store.paths.run(run_id).events):
        if event.get("type") == KIND and len(found) < _MOST:
            with suppress(ValidationError):
                found.append(_with_run(store, FlowCall.model_validate(event)))
    return found


def _with_run(store: RunStore, call: FlowCall) -> FlowCall:
    """Return a call with how its run stands."""
    try:
        meta = store.read(call.called_run_id or "")
    except SubagentError:
        return call
    is_over = meta.status.is_terminal
    return call.model_copy(
        update={
            "state": call.state if is_over else "running",
            "status": meta.status,
            "seconds": elapsed_seconds(meta.created_at, meta.ended_at if is_over else now()),
            "cost_usd": meta.with_descendants.cost_usd,
        }
    )


def phases(calls: Sequence[FlowCall]) -> dict[str, list[FlowCall]]:
    """Return the calls by their phases, in order; those without one come under an empty name."""
    found: dict[str, list[FlowCall]] = defaultdict(list)
    for call in calls:
        found[call.phase or ""].append(call)
    return dict(found)


def summary_of(calls: Sequence[FlowCall]) -> str:
    """Return how many calls are in each state, and what they have cost, in a line."""
    states = [call.state for call in calls]
    counts = [f"{states.count(state)} {state}" for state in dict.fromkeys(states)]
    cost = sum((call.cost_usd or Decimal(0) for call in calls), Decimal(0))
    return ", ".join([*counts, *([dollars(cost)] if cost else [])])


def call_line(call: FlowCall) -> str:
    """Return one call, for a list."""
    name = call.agent if call.label is None else f"{call.agent} ({call.label})"
    seconds = None if call.seconds is None else f"{call.seconds:.1f} s"
    cost = None if call.cost_usd is None else dollars(call.cost_usd)
    status = call.status.value if call.status is not None else None
    return "  ".join(filter(None, (call.state, name, call.called_run_id, status, seconds, cost)))


def dry_run_text(calls: Sequence[FlowCall]) -> str:
    """Return what a dry run has found: what becomes of each call, and what the rest is likely to cost.

    A run of an agent is likely to cost what its runs on record have cost on average.
    """
    paid: dict[str, list[Decimal]] = defaultdict(list)
    for call in calls:
        if call.state == "recorded" and call.cost_usd is not None:
            paid[call.agent].append(call.cost_usd)
    rest = [call for call in calls if call.state != "recorded"]
    known = [sum(paid[call.agent]) / len(paid[call.agent]) for call in rest if paid[call.agent]]
    lines = [f"A dry run, which has started nothing: {summary_of(calls) or 'no calls'}."]
    if rest:
        cost, unknown = dollars(sum(known, Decimal(0))), len(rest) - len(known)
        more = f", and {unknown} whose cost is not known" if unknown else ""
        lines.append(f"The rest is likely to cost {cost}{more}; calls that need their results follow.")
    return "\n".join([*lines, *map(call_line, calls)])
