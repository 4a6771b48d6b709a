"""How the tools are described beyond what a model sees of them: annotations and output schemas."""

from collections.abc import Sequence
from copy import deepcopy
from functools import cache
from typing import Any

from subagent_server.domain.definitions import AgentDefinition
from subagent_server.domain.json_schema import embedded
from subagent_server.domain.records import Record
from subagent_server.domain.states import Status
from subagent_server.service.get_logs import LogPage
from subagent_server.service.tools.table import Schema
from subagent_server.service.views import RunView
from subagent_server.service.wait_for_runs import Attention

READ_ONLY = frozenset({"wait_for_runs", "list_runs", "get_logs"})
DESTRUCTIVE = frozenset({"stop_run"})
NEXT_CALLS = frozenset({"check_status", "wait_for_runs", "reply_subagent", "ask_parent"})
"""The tools that a view names as the next call: whoever gets it has to have them at hand."""

IN_VIEW_BYTES = 8_000


def in_sight(wanted: bool) -> dict[str, Any]:
    """Return what keeps a tool in sight of a client that hides tools until they are searched for.

    Hiding costs a call. It is asked for in so many words: `subagent init` tells Claude Code to show all tools
    of this server but those that say no, as its first turn waits for no other server.
    """
    return {"anthropic/alwaysLoad": wanted}


def are_few(agents: Sequence[AgentDefinition]) -> bool:
    """Whether the tools of these agents are small enough together to be in every parent's sight."""
    return sum(len(agent.description.encode()) + 350 for agent in agents) <= IN_VIEW_BYTES


def output_schema(record: type[Record]) -> Schema:
    """Return the output schema of a record, without the titles that pydantic adds, as a copy to change."""
    return deepcopy(_record_schema(record))


@cache
def _record_schema(record: type[Record]) -> Schema:
    schema: Schema = _untitled(record.model_json_schema(by_alias=True))
    return schema


def run_output_schema(agent: AgentDefinition | None = None) -> Schema:
    """Return the output schema of a run view; `output` has the schema of the agent."""
    schema = output_schema(RunView)
    if agent is not None and agent.output_schema is not None:
        schema["properties"]["output"] = embedded(agent.output_schema, "#/properties/output")
    return schema


REPLY_OUTPUT: Schema = {
    "type": "object",
    "properties": {
        "success": {"type": "boolean"},
        "message": {"type": "string"},
        "updatedMetadata": {"type": "object"},
    },
    "required": ["success", "message", "updatedMetadata"],
}
ASK_OUTPUT: Schema = {
    "type": "object",
    "properties": {
        "messageId": {"type": "string"},
        "answer": {"type": "string"},
        "instructions": {"type": "string"},
    },
    "required": ["messageId"],
}


ROW_OUTPUT: Schema = {
    "type": "object",
    "properties": {
        "runId": {"type": "string"},
        "agent": {"type": "string"},
        "label": {"type": "string"},
        "status": {"enum": [status.value for status in Status]},
        "pendingQuestions": {"type": "integer"},
        "live": {"type": "boolean"},
        "elapsedSeconds": {"type": "number"},
        "waitingForSlot": {"type": "boolean"},
        "summary": {"type": "string"},
        "unreadable": {"type": "string"},
    },
    "required": ["runId", "pendingQuestions"],
}
"""A `RunRow`; one that cannot be read has `unreadable` instead of the rest."""


def generic_output_schema(name: str) -> Schema:
    """Return the output schema of a generic tool."""
    special = {"reply_subagent": REPLY_OUTPUT, "ask_parent": ASK_OUTPUT}
    if name in special:
        return special[name]
    if name == "wait_for_runs":
        return output_schema(Attention)
    if name == "get_logs":
        return output_schema(LogPage)
    if name == "list_runs":
        runs = {"type": "array", "items": ROW_OUTPUT}
        return {"type": "object", "properties": {"runs": runs}, "required": ["runs"]}
    return run_output_schema()


def _untitled(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {
            key: _untitled(value)
            for key, value in schema.items()
            if not (key == "title" and isinstance(value, str))
        }
    return [_untitled(item) for item in schema] if isinstance(schema, list) else schema
