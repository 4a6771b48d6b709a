"""A row of a run, for every list: its facts, its JSON and the schema of that."""

from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from types import UnionType
from typing import Any, get_args, get_type_hints

from subagent_server.domain.limits import MAX_LABEL_CHARACTERS, cut, maybe_cut
from subagent_server.domain.records import RunMeta
from subagent_server.domain.states import Status
from subagent_server.domain.times import timestamp
from subagent_server.launch import slots
from subagent_server.store.paths import RootPaths

MAX_ROW_SUMMARY_CHARACTERS = 300
_FOR_PEOPLE = {"only": "lists of the command line"}


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run in a list. A run whose state cannot be read has only its id and `unreadable`."""

    run_id: str
    agent: str | None = None
    label: str | None = None
    started_by: str | None = None
    status: Status | None = None
    pending_questions: int = 0
    live: bool | None = None
    elapsed_seconds: float | None = None
    waiting_for_slot: bool | None = None
    summary: str | None = None
    unreadable: str | None = None
    created: datetime | None = field(default=None, metadata=_FOR_PEOPLE)
    ended: datetime | None = field(default=None, metadata=_FOR_PEOPLE)
    parent_run_id: str | None = field(default=None, metadata=_FOR_PEOPLE)
    tokens: int | None = field(default=None, metadata=_FOR_PEOPLE)
    cost_usd: str | None = field(default=None, metadata=_FOR_PEOPLE)

    @property
    def is_over(self) -> bool:
        """Whether nothing is going on in the run, or nobody can say."""
        return self.status is None or (self.status.is_terminal and not self.live)

    def to_wire(self) -> dict[str, Any]:
        """Return the JSON object of the row for models, without missing facts."""
        found = ((wire, getattr(self, name)) for name, wire in _WIRE_NAMES)
        return {
            wire: value.value if isinstance(value, Status) else value
            for wire, value in found
            if value is not None
        }

    def to_full_wire(self) -> dict[str, Any]:
        """Return the JSON object of the row with the facts that a model would only pay for."""
        more = {
            "createdAt": None if self.created is None else timestamp(self.created),
            "endedAt": None if self.ended is None else timestamp(self.ended),
            "parentRunId": self.parent_run_id,
            "tokens": self.tokens or None,
            "costUsd": self.cost_usd,
        }
        return self.to_wire() | {name: value for name, value in more.items() if value is not None}


def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


_WIRE_NAMES = [(each.name, _camel_case(each.name)) for each in fields(RunRow) if not each.metadata]
_JSON_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number"}


def row_schema() -> dict[str, Any]:
    """Return the JSON Schema of a row. Required is what every row has."""
    kinds = get_type_hints(RunRow)
    return {
        "type": "object",
        "properties": {wire: _schema_of(kinds[name]) for name, wire in _WIRE_NAMES},
        "required": [wire for name, wire in _WIRE_NAMES if not isinstance(kinds[name], UnionType)],
    }


def _schema_of(kind: Any) -> dict[str, Any]:
    plain = next((each for each in get_args(kind) if each is not type(None)), kind)
    if plain is Status:
        return {"enum": [status.value for status in Status]}
    return {"type": _JSON_TYPES[plain]}


def row_of(root: RootPaths, meta: RunMeta, live: bool | None, *, started_by: str | None = None) -> RunRow:
    """Return the row of a run by its state."""
    return RunRow(
        run_id=meta.run_id,
        agent=cut(meta.agent_name, MAX_LABEL_CHARACTERS),
        label=maybe_cut(meta.label, MAX_LABEL_CHARACTERS),
        started_by=started_by,
        status=meta.status,
        pending_questions=meta.pending_questions,
        live=live,
        elapsed_seconds=elapsed_seconds(meta.created_at, meta.ended_at),
        waiting_for_slot=waits_for_slot(root, meta.run_id, meta.status) or None,
        summary=maybe_cut(meta.error.message if meta.error else meta.summary, MAX_ROW_SUMMARY_CHARACTERS),
        created=meta.created_at,
        ended=meta.ended_at,
        parent_run_id=meta.parent_run_id,
        tokens=meta.usage.tokens,
        cost_usd=None if meta.usage.cost_usd is None else str(meta.usage.cost_usd),
    )


def elapsed_seconds(created: datetime, ended: datetime | None) -> float:
    """Return how long a run has been there, until its end, in seconds; 0 if a clock was set back."""
    return round(max(0.0, ((ended or datetime.now(UTC)) - created).total_seconds()), 1)


def waits_for_slot(root: RootPaths, run_id: str, status: Status) -> bool:
    """Whether a run waits until others have ended."""
    return status is Status.READY and slots.is_waiting(root.slots, run_id)
