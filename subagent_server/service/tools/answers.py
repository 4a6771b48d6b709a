"""JSON Schemas of the answers of tools."""

from copy import deepcopy
from functools import cache
from typing import Any

from subagent_server.domain.definitions import JsonSchema
from subagent_server.domain.json_schema import NEWEST, embedded, validator_name
from subagent_server.domain.records import Record
from subagent_server.service.run_row import row_schema
from subagent_server.service.tools.schema import Schema
from subagent_server.service.views import RunView


def record_answer(record: type[Record]) -> Schema:
    """Return the schema of a record, without the titles that pydantic adds, as a copy to change."""
    return deepcopy(_record_schema(record))


@cache
def _record_schema(record: type[Record]) -> Schema:
    schema: Schema = _untitled(record.model_json_schema(by_alias=True))
    return schema


def run_answer() -> Schema:
    """Return the schema of a run view."""
    return record_answer(RunView)


def output_answer(schema: JsonSchema) -> Schema:
    """Return the schema of a view whose `output` has a schema. `check_status` has that of the whole view.

    Clients read it as one of 2020-12, so an output with a schema of an older draft has none there.
    """
    output = embedded(schema, "#/properties/output") if validator_name(schema) == NEWEST else {}
    return {"type": "object", "properties": {"runId": {"type": "string"}, "output": output}}


def agents_answer() -> Schema:
    """Return the schema of a page of agents."""
    row = {
        "type": "object",
        "properties": {"agent": {"type": "string"}, "description": {"type": "string"}},
        "required": ["agent", "description"],
    }
    return {
        "type": "object",
        "properties": {
            "agents": {"type": "array", "items": row},
            "total": {"type": "integer"},
            "nextCursor": {"type": "string"},
            "instructions": {"type": "string"},
        },
        "required": ["agents", "total", "instructions"],
    }


def rows_answer() -> Schema:
    """Return the schema of a list of runs."""
    runs = {"type": "array", "items": row_schema()}
    properties = {"runs": runs, "otherParents": {"type": "string"}, "omitted": {"type": "string"}}
    return {"type": "object", "properties": properties, "required": ["runs"]}


def reply_answer() -> Schema:
    """Return the schema of what `reply_subagent` answers."""
    return {
        "type": "object",
        "properties": {
            "success": {"type": "boolean"},
            "message": {"type": "string"},
            "updatedMetadata": {"type": "object"},
        },
        "required": ["success", "message", "updatedMetadata"],
    }


def ask_answer() -> Schema:
    """Return the schema of what `ask_parent` answers."""
    return {
        "type": "object",
        "properties": {
            "messageId": {"type": "string"},
            "answer": {"type": "string"},
            "instructions": {"type": "string"},
        },
        "required": ["messageId"],
    }


def _untitled(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {
            key: _untitled(value)
            for key, value in schema.items()
            if not (key == "title" and isinstance(value, str))
        }
    return [_untitled(item) for item in schema] if isinstance(schema, list) else schema
