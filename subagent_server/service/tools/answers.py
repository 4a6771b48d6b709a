"""JSON Schemas of the answers of tools."""

from copy import deepcopy
from functools import cache
from typing import Any

from subagent_server.domain.definitions import AgentDefinition
from subagent_server.domain.json_schema import embedded
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


def run_answer(agent: AgentDefinition | None = None) -> Schema:
    """Return the schema of a run view; `output` has the schema of the agent."""
    schema = record_answer(RunView)
    if agent is not None and agent.output_schema is not None:
        schema["properties"]["output"] = embedded(agent.output_schema, "#/properties/output")
    return schema


def rows_answer() -> Schema:
    """Return the schema of a list of runs."""
    runs = {"type": "array", "items": row_schema()}
    properties = {"runs": runs, "otherParents": {"type": "string"}}
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
