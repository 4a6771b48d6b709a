"""The facts of a run for lists and sums, taken from its state without checking all of it.

A tenth of the cost of `RunStore.read`, and no import of pydantic: for a hundred thousand runs both matter. A
state that is not plain (another version, a field of another type) gives no facts: `RunStore.read` then says
what is wrong with it. Standard library only.
"""

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from subagent_server.domain.figures import known_sum
from subagent_server.domain.states import MessageStatus, Status
from subagent_server.domain.versions import SCHEMA_VERSION
from subagent_server.host.processes import Identity
from subagent_server.store.paths import RECORD_BYTES, STATE_BYTES, RunPaths

MOST_AMOUNT_CHARACTERS = 120
MOST_TASK_CHARACTERS = 4_096
"""Of a directory, as the system has it."""


@dataclass(frozen=True, slots=True)
class Spent:
    """The cost of a run, as far as it is known: tokens of every kind, and a decimal string in USD."""

    input_tokens: int | None = 0
    output_tokens: int | None = 0
    cache_read_tokens: int | None = 0
    cache_write_tokens: int | None = 0
    cost_usd: str | None = None

    @property
    def tokens(self) -> int | None:
        """All tokens together, as far as they are known; None if none of them are."""
        return known_sum(
            self.input_tokens, self.output_tokens, self.cache_read_tokens, self.cache_write_tokens
        )


@dataclass(frozen=True, slots=True)
class Starter:
    """The process through which the first run of a tree was started, its client, and the parent's token."""

    process: Identity
    client: str | None
    parent: str | None = None


@dataclass(frozen=True, slots=True)
class RunFacts:
    """A run as a list shows it. `expires`: when the first of its open questions does."""

    run_id: str
    agent: str
    status: Status
    created: datetime
    ended: datetime | None
    label: str | None
    what: str | None
    error_code: str | None
    parent_run_id: str | None
    started_by: Starter | None
    host: str | None
    pending_questions: int
    expires: datetime | None
    spent: Spent


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """The task of a run as a list has it: its directory, and runner and model as its agent names them."""

    runner: str | None
    model: str | None
    cwd: str | None


def read_facts(run: RunPaths) -> RunFacts | None:
    """Return the facts of a run, or None if its state is not plain.

    Raises:
        FileNotFoundError, NotADirectoryError: there is no such run.
    """
    try:
        return _facts(run.run_id, json.loads(run.meta.read(STATE_BYTES)))
    except (FileNotFoundError, NotADirectoryError):
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def read_task_facts(run: RunPaths) -> TaskFacts:
    """Return the facts of the task of a run, without those that its request does not give plainly."""
    try:
        request = json.loads(run.request.read(STATE_BYTES))
        agent = request["agent"]
        return TaskFacts(
            _short_text(agent.get("runner")), _short_text(agent.get("model")), _short_text(request["cwd"])
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return TaskFacts(None, None, None)


def tree_is_gone(run: RunPaths) -> bool:
    """Whether the record says that no process of a run is left."""
    try:
        return json.loads(run.exit.read(RECORD_BYTES)).get("treeGone") is True
    except (OSError, ValueError, AttributeError, RecursionError):
        return False


def newer_version(run: RunPaths) -> int | None:
    """Return the schema version of a state that a later version of this program wrote; else None."""
    try:
        version = json.loads(run.meta.read(STATE_BYTES))["schemaVersion"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return version if isinstance(version, int) and version > SCHEMA_VERSION else None


def _facts(run_id: str, state: dict[str, Any]) -> RunFacts | None:
    error = state.get("error")
    ended = state.get("completedAt") or state.get("stoppedAt")
    expiries = [m["expiresAt"] for m in state["messages"] if _expires(m)]
    if state["schemaVersion"] != SCHEMA_VERSION or state["runId"] != run_id:
        return None
    facts = RunFacts(
        run_id=run_id,
        agent=_text(state["agentName"]),
        status=Status(state["status"]),
        created=_moment(state["createdAt"]),
        ended=None if ended is None else _moment(ended),
        label=_maybe_text(state.get("label")),
        what=_maybe_text(state.get("summary") if error is None else error["message"]),
        error_code=None if error is None else _text(error["code"]),
        parent_run_id=_maybe_text(state.get("parentRunId")),
        started_by=_starter(state.get("startedBy")),
        host=_maybe_text((state.get("launch") or {}).get("host")),
        pending_questions=_count(state["pendingQuestions"]),
        expires=min(map(_moment, expiries), default=None),
        spent=_spent(state["usage"]),
    )
    return facts if facts.status.is_terminal == (facts.ended is not None) else None


def _starter(data: dict[str, Any] | None) -> Starter | None:
    if data is None:
        return None
    process = Identity.from_json(data)
    if process is None:
        raise TypeError
    return Starter(process, _maybe_text(data.get("client")), _maybe_text(data.get("parent")))


def _expires(message: dict[str, Any]) -> bool:
    status = MessageStatus(message["messageStatus"])
    return status is MessageStatus.PENDING and message.get("expiresAt") is not None


def _spent(usage: dict[str, Any]) -> Spent:
    cost = usage.get("costUsd")
    return Spent(
        input_tokens=_maybe_count(usage["inputTokens"]),
        output_tokens=_maybe_count(usage["outputTokens"]),
        cache_read_tokens=_maybe_count(usage["cacheReadTokens"]),
        cache_write_tokens=_maybe_count(usage["cacheWriteTokens"]),
        cost_usd=None if cost is None else _amount(cost),
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _maybe_text(value: Any) -> str | None:
    return None if value is None else _text(value)


def _short_text(value: Any) -> str | None:
    return value if isinstance(value, str) and len(value) <= MOST_TASK_CHARACTERS else None


def _amount(value: Any) -> str:
    """Return an amount of money as this product writes it: digits, as many as a person could read."""
    if len(_text(value)) > MOST_AMOUNT_CHARACTERS or not value.replace(".", "", 1).isdecimal():
        raise ValueError
    return str(value)


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise TypeError
    return value


def _maybe_count(value: Any) -> int | None:
    return None if value is None else _count(value)


def _moment(value: Any) -> datetime:
    """Return a time as this product writes it: with its offset, or two of them could not be compared."""
    moment = datetime.fromisoformat(value)
    if moment.tzinfo is None or not datetime.min.year < moment.year < datetime.max.year:
        raise ValueError
    return moment
