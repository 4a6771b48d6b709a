"""The drafts of JSON Schema, schemas inside others, those of a run's files; patterns. Pure."""

import re
from copy import deepcopy
from functools import cache
from typing import Any
from urllib.parse import urljoin

from pydantic import BaseModel

from subagent_server.run.records import Record, RunMeta, RunRequest, RunResult
from subagent_server.run.states import RUN_ID_PATTERN, Status, cut

NEWEST = "Draft202012Validator"
_VALIDATORS = {
    "json-schema.org/draft-04/schema": "Draft4Validator",
    "json-schema.org/draft-06/schema": "Draft6Validator",
    "json-schema.org/draft-07/schema": "Draft7Validator",
    "json-schema.org/draft/2019-09/schema": "Draft201909Validator",
    "json-schema.org/draft/2020-12/schema": NEWEST,
}
"""By the value of `$schema`, without its scheme: the class of `jsonschema` for that draft."""
_DATA = frozenset({"const", "enum", "default", "examples"})
_NAMED = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
_REFERENCES = frozenset({"$ref", "$dynamicRef"})


def compiled(pattern: str, flags: int = 0) -> re.Pattern[str]:
    """Return a pattern that somebody else has written. Raises ValueError: Python does not read it."""
    try:
        return re.compile(pattern, flags)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(str(error)) from error


def validator_name(schema: Any) -> str | None:
    """Return the class of `jsonschema` that judges by the draft of `$schema`; None for an unknown draft.

    Without `$schema` a schema is one of 2020-12.
    """
    draft = schema.get("$schema") if isinstance(schema, dict) else None
    if draft is None:
        return NEWEST
    text = draft.removesuffix("#").rpartition("://")[2] if isinstance(draft, str) else ""
    return _VALIDATORS.get(text)


def first_fault(value: Any, schema: Any) -> str | None:
    """Return what is wrong with a value by a schema of our own making, as a part of a sentence; else None."""
    from jsonschema import Draft202012Validator  # a twelfth of a start
    from jsonschema.exceptions import best_match

    error = best_match(Draft202012Validator(schema).iter_errors(value))
    if error is None:
        return None
    where = ".".join(map(str, error.absolute_path))
    return cut(f"{where}: {error.message}" if where else error.message, 300)


def embedded(schema: Any, pointer: str) -> Any:
    """Return a copy of `schema` that is at `pointer` (`#/properties/output`) of another schema.

    Its references into itself point to its new position; its `$schema` and `$id`, which would give it a
    root of its own, are left out. A part with an `$id` is a root already and stays as it is. So do the parts
    that are not schemas: names of properties, and values such as those of `enum`.
    """
    root = schema.get("$id") if isinstance(schema, dict) else None
    if isinstance(schema, dict):
        schema = {key: value for key, value in schema.items() if key not in ("$schema", "$id")}
    return _moved(schema, pointer, root if isinstance(root, str) else "")


def _moved(schema: Any, pointer: str, root: str) -> Any:
    if isinstance(schema, list):
        return [_moved(item, pointer, root) for item in schema]
    if not isinstance(schema, dict) or isinstance(schema.get("$id"), str):
        return deepcopy(schema)
    return {key: _moved_value(key, value, pointer, root) for key, value in schema.items()}


def _moved_value(key: str, value: Any, pointer: str, root: str) -> Any:
    if key in _DATA:
        return deepcopy(value)
    if key in _REFERENCES and isinstance(value, str):
        return _reference(value, pointer, root)
    if key in _NAMED and isinstance(value, dict):
        return {name: _moved(part, pointer, root) for name, part in value.items()}
    return _moved(value, pointer, root)


def _reference(target: str, pointer: str, root: str) -> str:
    """Return where a reference of a schema with the `$id` `root` leads when that is at `pointer`."""
    document, _, fragment = target.partition("#")
    if document and (not root or urljoin(root, document) != root.rstrip("#")):
        return target
    return pointer + fragment if not fragment or fragment.startswith("/") else f"#{fragment}"


@cache
def shown_schema(model: type[BaseModel]) -> "Schema":
    """Return the schema of a model as short as a reader needs it: an optional field shows no null."""
    schema = model.model_json_schema(by_alias=True)
    return _shown(schema, schema)


def _shown(node: "Schema", root: "Schema") -> "Schema":
    if "$ref" in node:
        target = root["$defs"][node["$ref"].rpartition("/")[2]]
        return _shown({key: value for key, value in target.items() if key != "description"}, root)
    if "anyOf" in node:
        (choice,) = (each for each in node["anyOf"] if each != {"type": "null"})  # of two, one would be lost
        rest = {key: value for key, value in node.items() if key != "anyOf"}
        return _shown({**choice, **rest}, root)
    shown = {key: value for key, value in node.items() if key not in ("title", "default", "$defs")}
    if "properties" in shown:
        shown.pop("description", None)  # of the class
        shown["properties"] = {name: _shown(each, root) for name, each in shown["properties"].items()}
    if "items" in shown:
        shown["items"] = _shown(shown["items"], root)
    return shown


# -- JSON Schema 2020-12 of the files of a run, as strict as the program that writes them.


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
