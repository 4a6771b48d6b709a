"""An ended run, in the form needed by its continuation."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, field_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from subagent_server.run.files import Entry
from subagent_server.run.records import Message
from subagent_server.run.states import Status


@dataclass(frozen=True)
class PreviousCall:
    """A tool call that had begun. `text` is its result in the journal, if it had `finished`.

    `whole` is True if `text` is complete: a long text is cut, and an image leaves only its name. A call
    that ran a program has the calls of the program in `made`, by their numbers; of their results it has the
    beginnings. `runs` are those of the agents that the program has called.
    """

    call_id: str
    name: str
    arguments: Any = None
    began_at: datetime | None = None
    finished: bool = False
    text: str = ""
    is_error: bool = False
    whole: bool = True
    made: "dict[int, PreviousCall]" = field(default_factory=dict)
    runs: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class PreviousChild:
    """A run that it had started."""

    run_id: str
    agent_name: str
    tool_name: str
    prompt: str
    status: Status


@dataclass(frozen=True)
class PreviousRun:
    """The files of an earlier run, as far as they are left.

    `messages` are the whole lines of its transcript, empty if the run had not begun. `calls` are the tool
    calls in its journal, by their ids and in their order. `tells_all` is False if the machine has restarted
    since: then the journal may lack its last events. `todos` is its to-do list.
    """

    run_id: str
    status: Status
    prompt: str
    model: str | None = None
    inputs: tuple[tuple[Entry, str], ...] = ()
    messages: Sequence[dict[str, Any]] = ()
    calls: Mapping[str, PreviousCall] = field(default_factory=dict)
    questions: Sequence[Message] = ()
    children: Sequence[PreviousChild] = ()
    todos: Sequence[Any] = ()
    tells_all: bool = True


# -- Events of other subagents in the journal of a run: its nested runs, and those of foreign programs.
#
# The five types and the field names are those of the seeds (SPEC section 8). In the journal each is an
# event of type `subagent_event` whose `event` is the type and whose `subagentName` and `subagentRunId` are
# its origin.


KIND = "subagent_event"
MAX_TEXT = 1_000
"""Characters of one text: the journal of the run that it comes from has all of it."""

_NAMES = {
    "run_started": "subagent_start",
    "run_ended": "subagent_end",
    "tool_call": "tool_call",
    "tool_result": "tool_result",
    "thought": "thought_trace",
    "text": "text",
    "question": "question",
    "reply": "reply",
    "no_reply": "no_reply",
    "warning": "warning",
}
"""The events of a nested run for its parent, and their names there. Turns and usage are in its own state."""
_FACTS = ("toolName", "toolCallId", "isError", "seconds", "messageId", "status", "model", "answeredBy")
_PAYLOADS = ("arguments", "text", "question", "answer", "message", "summary")


EVENT_VARIABLES = ("SUBAGENT_LOGGING_ADDRESS", "CPE_SUBAGENT_LOGGING_ADDRESS")
"""In these the programs of a run find the address to post to."""


class ForeignEvent(BaseModel):
    """The body of a POST to `.../subagent-events`."""

    model_config = ConfigDict(alias_generator=to_camel, extra="ignore", frozen=True)

    subagent_name: str = Field(min_length=1, max_length=200)
    subagent_run_id: str = Field(min_length=1, max_length=200)
    timestamp: datetime
    type: Literal["subagent_start", "subagent_end", "tool_call", "tool_result", "thought_trace"]
    tool_name: str | None = Field(default=None, max_length=200)
    tool_call_id: str | None = Field(default=None, max_length=200)
    payload: JsonValue = None
    execution_timeout_seconds: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    reasoning_type: str | None = Field(default=None, max_length=200)

    @field_validator("payload")
    @classmethod
    def _has_finite_numbers(cls, payload: JsonValue) -> JsonValue:
        try:
            json.dumps(payload, allow_nan=False)
        except ValueError as error:
            why = "NaN, Infinity and numbers beyond a float are not JSON"
            raise PydanticCustomError("not_finite", why) from error
        return payload

    def facts(self) -> dict[str, Any]:
        """Return it as an event of the journal, long texts cut."""
        record = self.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"type", "payload"})
        payload = {} if self.payload is None else {"payload": _short(self.payload)}
        return {"event": self.type, **record, **payload}


def nested_event(event: Mapping[str, Any], name: str, run_id: str) -> dict[str, Any] | None:
    """Return an event of the journal of run `run_id` for the journal of its parent; None if it is not for it.

    An event that this run took from a run below it keeps its origin.
    """
    if event.get("type") == KIND:
        return {key: _short(value) for key, value in event.items() if key not in ("seq", "at", "type")}
    kind = _NAMES.get(str(event.get("type")))
    if kind is None:
        return None
    record = {
        "event": kind,
        "subagentName": name,
        "subagentRunId": run_id,
        "timestamp": event.get("at"),
        **{fact: _short(event[fact]) for fact in _FACTS if event.get(fact) is not None},
    }
    keys = ("error", *_PAYLOADS) if kind == "subagent_end" else _PAYLOADS
    payload = next((event[key] for key in keys if event.get(key) is not None), None)
    return record if payload is None else {**record, "payload": _short(payload)}


def _short(value: Any) -> Any:
    """Return a value within the bound: one that is longer as JSON is cut, as text."""
    if value is None or isinstance(value, bool | int | float):
        return value
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if len(text) <= MAX_TEXT:
        return value
    return f"{text[:MAX_TEXT]}… ({len(text):,} characters)"
