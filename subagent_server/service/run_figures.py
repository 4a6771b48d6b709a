"""The figures of a run, by which runs are compared: how it ended, what it did, what it used.

Tested in `tests/cli/test_compare.py`.
"""

from collections import Counter
from typing import Any

from pydantic import Field

from subagent_server.domain.errors import SubagentError
from subagent_server.domain.records import Failure, Money, Record, Usage
from subagent_server.domain.states import Status
from subagent_server.host import journal
from subagent_server.service.context import Service
from subagent_server.service.reconcile import Observed
from subagent_server.service.run_row import elapsed_seconds
from subagent_server.service.tree_usage import tree_usage
from subagent_server.store.logs import recorded_usage
from subagent_server.store.paths import RunPaths

_OWN = ("turns", "toolCalls")
"""Figures that are those of the run alone."""
_MOST_NAMES = 200
_NAME_CHARACTERS = 200


class RunFigures(Record):
    """The known figures of a run; tokens and cost are those of its tree, turns and tools its own.

    `model` is None if the journal names no model, a figure if it is unknown.
    `at_least` names the sums of which a part is not known. `result` is the text, or the structured value, of
    a run that has one.
    """

    run_id: str
    agent: str
    label: str | None = None
    status: Status
    model: str | None = None
    scripted: bool | None = None
    seconds: float
    turns: int | None = None
    tool_calls: int | None = None
    tools: dict[str, int] = Field(default_factory=dict)
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    cost_usd: Money | None = None
    at_least: tuple[str, ...] | None = None
    error: Failure | None = None
    result: Any = None

    def to_wire(self) -> dict[str, Any]:
        """Return it for `--json`, without the fields that are not known."""
        return self.model_dump(mode="json", exclude_none=True)


def run_figures(service: Service, observed: Observed) -> RunFigures:
    """Return the figures of a run, those so far if it has not ended.

    Raises:
        UnreadableMeta: its result cannot be read.
    """
    meta, run = observed.meta, service.store.paths.run(observed.meta.run_id)
    own = meta.usage if meta.ended_at is not None else meta.usage.merged(recorded_usage(run))
    tree = tree_usage(service.store, meta) if service.store.children_of(meta.run_id) else own
    model, tools = _from_journal(run)
    result = service.store.read_result(meta.run_id) if meta.ended_at is not None else None
    return RunFigures(
        run_id=meta.run_id,
        agent=meta.agent_name,
        label=meta.label,
        status=meta.status,
        model=model,
        scripted=_is_scripted(service, meta.run_id),
        seconds=elapsed_seconds(meta.started_at or meta.created_at, meta.ended_at),
        turns=own.turns,
        tool_calls=own.tool_calls,
        tools=tools,
        **_tokens(tree),
        cost_usd=tree.cost_usd,
        at_least=tuple(name for name in tree.at_least if name not in _OWN) or None,
        error=meta.error,
        result=None if result is None else (result.output if result.has_output else result.text or None),
    )


def _tokens(usage: Usage) -> dict[str, int | None]:
    counts = {
        name: getattr(usage, name)
        for name in ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
    }
    return counts if any(counts.values()) else {}


def _from_journal(run: RunPaths) -> tuple[str | None, dict[str, int]]:
    """Return the model, and how often each tool was called; a journal is data, so names are bounded."""
    model: str | None = None
    tools: Counter[str] = Counter()
    for event in journal.records(run.events):
        if event.get("type") == "run_started" and isinstance(event.get("model"), str):
            model = event["model"][:_NAME_CHARACTERS]
        elif event.get("type") == "tool_call":
            tools[str(event.get("toolName"))[:_NAME_CHARACTERS]] += 1
    return model, dict(tools.most_common(_MOST_NAMES))


def _is_scripted(service: Service, run_id: str) -> bool | None:
    try:
        return service.store.read_request(run_id).scripted
    except SubagentError:
        return None
