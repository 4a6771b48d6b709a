"""JSON Schema 2020-12 of the files of a run, as strict as the program that writes them."""

from typing import Any

from subagent_server.domain.ids import RUN_ID_PATTERN
from subagent_server.domain.records import Record, RunMeta, RunRequest, RunResult
from subagent_server.domain.states import Status

DIALECT = "https://json-schema.org/draft/2020-12/schema"
FAILURE_CODES = (
    "agent_error",
    "model_error",
    "invalid_output",
    "max_turns",
    "timeout",
    "budget",
    "ask_timeout",
    "launch_failed",
    "crashed",
    "lost",
    "config",
    "storage",
)
"""Why a run can have failed (SPEC section 4)."""

FILES: dict[str, tuple[str, type[Record]]] = {
    "meta": ("run.meta.json", RunMeta),
    "request": ("request.json", RunRequest),
    "result": ("result.json", RunResult),
}
_WITHOUT_EMPTY_FIELDS = frozenset({"meta", "request"})
_RUN_IDS = frozenset({"runId", "rootRunId", "parentRunId", "continuesRunId"})
_ENDED_AT = {Status.COMPLETED: "completedAt", Status.FAILED: "completedAt", Status.STOPPED: "stoppedAt"}
_AT_WORK = [Status.RUNNING.value, Status.WAITING.value, Status.REPLIED.value]
_COUNT = [{"type": "integer"}, {"type": "null"}]
"""Of what a run has used. A count that is not known is written as null."""
_AMOUNT = {"pattern": r"^[0-9]+(\.[0-9]+)?$"}

Schema = dict[str, Any]


def file_schema(name: str) -> Schema:
    """Return the schema of a file of `FILES`.

    It describes the files that this version writes. A file of an earlier version may lack fields.
    """
    title, record = FILES[name]
    schema = record.model_json_schema(by_alias=True, mode="serialization")
    for part in (schema, *schema.get("$defs", {}).values()):
        if "properties" in part:
            _restrict(part, all_present=name in _WITHOUT_EMPTY_FIELDS)
    if name == "meta":
        schema["allOf"] = _by_status()
    if name == "result":
        schema["properties"]["outcome"] = {"enum": [status.value for status in _ENDED_AT]}
    return {"$schema": DIALECT, **schema, "title": title}


def _restrict(part: Schema, *, all_present: bool) -> None:
    """Narrow the fields of one object to the values that are ever written."""
    required = []
    for field, content in part["properties"].items():
        is_empty_left_out = field == "atLeast"
        if part.get("title") != "Usage" or content.get("anyOf") != _COUNT:
            is_empty_left_out |= _drop_null(content)
        if not is_empty_left_out and (all_present or "default" not in content):
            required.append(field)
        _narrow(field, content)
    part["required"] = required
    if part.get("title") == "Failure":
        part["properties"]["code"] = {"enum": list(FAILURE_CODES)}


def _drop_null(content: Schema) -> bool:
    """Remove the null of an optional field, which is left out of a file; return whether there was one."""
    branches = content.get("anyOf", [])
    kept = [branch for branch in branches if branch != {"type": "null"}]
    if len(kept) == len(branches):
        return False
    del content["anyOf"]
    content.pop("default", None)
    content.update(kept[0] if len(kept) == 1 else {"anyOf": kept})
    return True


def _narrow(field: str, content: Schema) -> None:
    for kind in (content, *content.get("anyOf", [])):
        if kind.get("type") == "integer":
            kind["minimum"] = 0
    if field in _RUN_IDS:
        content["pattern"] = f"^{RUN_ID_PATTERN}$"
    elif field == "costUsd":
        content.update(_AMOUNT)
    elif field == "at" or field.endswith(("At", "Timestamp")):
        content["format"] = "date-time"


def _by_status() -> list[Schema]:
    """Return the fields that a status brings along."""
    rules: list[tuple[Schema, Schema]] = [
        *(({"const": status.value}, {"required": [field]}) for status, field in _ENDED_AT.items()),
        ({"const": Status.FAILED.value}, {"required": ["error"]}),
        ({"enum": _AT_WORK}, {"required": ["startedAt", "worker"]}),
        ({"const": Status.WAITING.value}, {"properties": {"pendingQuestions": {"minimum": 1}}}),
    ]
    return [{"if": {"properties": {"status": status}}, "then": then} for status, then in rules]
