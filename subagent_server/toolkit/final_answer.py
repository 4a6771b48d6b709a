"""The tool `final_answer`: the structured result of an agent with an output schema (SPEC section 7)."""

import re
from typing import Any

from subagent_server.domain.definitions import JsonSchema
from subagent_server.domain.json_schema import NEWEST, embedded, validator_name
from subagent_server.host.schema_check import CHECK_SECONDS, misfit
from subagent_server.toolkit.mcp_servers.schema_repair import repaired, without_dead_references
from subagent_server.toolkit.tool import ToolResult

WRAPPER = "value"
_PLAIN_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
"""The names of properties that the API takes in the schema of a tool, at its root."""


class FinalAnswer:
    """Keeps the arguments of the latest valid call. The model may repeat an invalid call, corrected.

    A check against `schema`, by its own draft, takes `seconds` at most. The model sees each schema as one of
    2020-12, as the API wants it.
    """

    name = "final_answer"
    sequential = True

    def __init__(self, schema: JsonSchema, seconds: float = CHECK_SECONDS) -> None:
        shown = _in_newest_draft(schema)
        self._wrapped = not _stands_alone(shown)
        self._shown = _in_object(shown) if self._wrapped else shown
        self._schema = schema
        self._answers: list[Any] = []
        self._refusal = ""
        self._seconds = seconds

    @property
    def given(self) -> bool:
        """Whether a valid answer has been given."""
        return bool(self._answers)

    @property
    def answer(self) -> Any:
        """The latest valid answer, unwrapped."""
        return self._answers[-1]

    @property
    def last_refusal(self) -> str:
        """How the latest call was refused, as the end of a sentence; empty if none was."""
        return f"; its last one {self._refusal}" if self._refusal else ""

    def definition(self) -> dict[str, Any]:
        """Return the tool as the model sees it: its input schema is the output schema."""
        return {
            "name": self.name,
            "description": "Give the final result of your task. It ends your work: call it once, last.",
            "input_schema": self._shown,
        }

    async def call(self, arguments: dict[str, Any]) -> ToolResult:
        """Store the answer if it is valid. A process that can be killed checks it."""
        if self._wrapped and arguments.keys() != {WRAPPER}:
            problem: str | None = f"has to be the one argument `{WRAPPER}`"
        else:
            answer = arguments[WRAPPER] if self._wrapped else arguments
            problem = await misfit(self._schema, answer, self._seconds)
        if problem is not None:
            self._refusal = problem
            return ToolResult.failure(f"The answer {problem}. Call it again, mended.")
        self._answers.append(answer)
        return ToolResult.of_text("The answer is taken.")

    async def aclose(self) -> None:
        """Do nothing: no resource is held."""


def _in_newest_draft(schema: JsonSchema) -> Any:
    if validator_name(schema) == NEWEST:
        return schema
    modern = repaired(schema)
    return without_dead_references(modern, modern)


def _stands_alone(schema: Any) -> bool:
    """Whether the API takes the schema as a tool's input: an object, no choice at its root, plain names."""
    if not isinstance(schema, dict) or schema.get("type") != "object":
        return False
    properties = schema.get("properties") or {}
    has_plain_names = isinstance(properties, dict) and all(map(_PLAIN_NAME.fullmatch, properties))
    return has_plain_names and not schema.keys() & {"anyOf", "oneOf", "allOf", "$ref"}


def _in_object(schema: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {WRAPPER: embedded(schema, f"#/properties/{WRAPPER}")},
        "required": [WRAPPER],
        "additionalProperties": False,
    }
