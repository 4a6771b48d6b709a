"""The calls of agents that a program has made, as lists show them: by phase, with state, cost and time.

They come from the journal of the run, which is data: a line without the form of a call is skipped.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from decimal import Decimal

from pydantic import ValidationError

from subagent_server.run import durable
from subagent_server.run.errors import SubagentError
from subagent_server.run.processes import now
from subagent_server.run.records import Money, Record
from subagent_server.run.states import Status, dollars
from subagent_server.run.store import RunStore
from subagent_server.verbs.access import run_as_caller
from subagent_server.verbs.views import elapsed_seconds

KIND = "agent_call"
_MOST = 10_000


class FlowCall(Record):
    """One call. `state` is what became of it: `new`, `recorded`, `resumed` or `running`."""

    agent: str
    state: str
    label: str | None = None
    phase: str | None = None
    called_run_id: str | None = None
    refusal: str | None = None
    status: Status | None = None
    seconds: float | None = None
    cost_usd: Money | None = None


def flow_calls(store: RunStore, run_id: str) -> list[FlowCall]:
    """Return the calls of agents that the programs of a run have made, in their order; at most 10,000."""
    found: list[FlowCall] = []
    with suppress(OSError):  # a journal that is damaged keeps nobody from seeing the run
        for event in durable.records(store.paths.run(run_id).events):
            if event.get("type") == KIND and len(found) < _MOST:
                with suppress(ValidationError):
                    found.append(_with_run(store, FlowCall.model_validate(event)))
    return found


def _with_run(store: RunStore, call: FlowCall) -> FlowCall:
    """Return a call with the state of its run."""
    try:
        meta = store.read(call.called_run_id or "")
    except SubagentError:
        return call
    is_over = meta.status.is_terminal
    state = "recorded" if call.state == "running" else call.state  # it shares the run of an equal key
    return call.model_copy(
        update={
            "state": state if is_over else "running",
            "status": meta.status,
            "seconds": elapsed_seconds(meta.created_at, meta.ended_at if is_over else now()),
            "cost_usd": meta.with_descendants.cost_usd,
        }
    )


def calls_of_flow(store: RunStore, run_id: str) -> list[FlowCall]:
    """Return the calls of a run that is a flow; none of any other, whose journal may be long."""
    with suppress(SubagentError):
        if store.read_request(run_id).runner == "flow":
            return flow_calls(store, run_id)
    return []


def phases(calls: Sequence[FlowCall]) -> Iterator[tuple[str, list[FlowCall]]]:
    """Yield each phase in order: a title, with the calls by state and their cost, and the calls."""
    found: dict[str | None, list[FlowCall]] = defaultdict(list)
    for call in calls:
        found[call.phase].append(call)
    for name, each in found.items():
        yield f"{' '.join((name or 'calls').split())}: {_summary(each)}", each


def call_lines(calls: Sequence[FlowCall], most: int) -> Iterator[str]:
    """Yield the phases and in each at most so many calls, a line each."""
    for title, each in phases(calls):
        yield title
        yield from (f"  {_line(call)}" for call in each[:most])
        if len(each) > most:
            yield f"  and {len(each) - most} more"


def _summary(calls: Sequence[FlowCall]) -> str:
    states = [call.state for call in calls]
    costs = {call.called_run_id: call.cost_usd or Decimal(0) for call in calls}  # equal keys share a run
    cost = sum(costs.values(), Decimal(0))
    counts = [f"{states.count(state)} {state}" for state in dict.fromkeys(states)]
    return ", ".join([*counts, *([dollars(cost)] if cost else [])])


def _line(call: FlowCall) -> str:
    name = call.agent if call.label is None else f"{call.agent} ({' '.join(call.label.split())})"
    seconds = None if call.seconds is None else f"{call.seconds:.1f} s"
    cost = None if call.cost_usd is None else dollars(call.cost_usd)
    status = None if call.status is None else call.status.value
    refusal = None if call.refusal is None else f"would be refused: {' '.join(call.refusal.split())}"
    return "  ".join(filter(None, (call.state, name, call.called_run_id, status, seconds, cost, refusal)))


def dry_run_text(store: RunStore, run_id: str) -> str:
    """Return what a dry run has found: what becomes of each call, and what the rest is likely to cost.

    A run of an agent is likely to cost what its runs below the same flow have cost on average.
    """
    calls, paid = flow_calls(store, run_id), defaultdict[str, list[Decimal]](list)
    for flow in run_as_caller(store, run_id).carries_on:
        for meta in store.readable(store.children_of(flow)):
            cost = meta.with_descendants.cost_usd
            paid[meta.agent_name] += [cost] if cost and meta.status is Status.COMPLETED else []
    rest = [call for call in calls if call.state != "recorded"]
    known = [sum(paid[call.agent]) / len(paid[call.agent]) for call in rest if paid[call.agent]]
    lines = [f"A dry run, which has started nothing: {_summary(calls) or 'no calls'}."]
    if rest:
        likely = dollars(sum(known, Decimal(0))) if known else "an unknown sum"
        more = f", and {len(rest) - len(known)} whose cost is not known" if 0 < len(known) < len(rest) else ""
        lines.append(f"The rest is likely to cost {likely}{more}; calls that need their results follow.")
    return "\n".join([*lines, *map(_line, calls)])
