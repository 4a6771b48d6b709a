"""The tool `final_answer`: the structured result of an agent with an output schema (SPEC section 7)."""

import re
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError, best_match

from subagent_server.domain.definitions import JsonSchema
from subagent_server.domain.json_schema import embedded
from subagent_server.host.killable import WorkDied, killable
from subagent_server.toolkit.tool import ToolResult

WRAPPER = "value"
CHECK_SECONDS = 5.0
"""How long an answer may be checked: a pattern in a schema can take for ever over a few characters."""
_PLAIN_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
"""The names of properties that the API takes in the schema of a tool, at its root."""


class FinalAnswer:
    """Keeps the arguments of the latest valid call. The model may repeat an invalid call, corrected.

    A check against `schema` takes `seconds` at most.
    """

    name = "final_answer"
    sequential = True

    def __init__(self, schema: JsonSchema, seconds: float = CHECK_SECONDS) -> None:
        self._wrapped = not _stands_alone(schema)
        self._schema = _in_object(schema) if self._wrapped else schema
        self._validator = Draft202012Validator(self._schema)
        self._answers: list[Any] = []
        self._seconds = seconds

    @property
    def given(self) -> bool:
        """Whether a valid answer has been given."""
        return bool(self._answers)

    @property
    def answer(self) -> Any:
        """The latest valid answer, unwrapped."""
        return self._answers[-1]

    def definition(self) -> dict[str, Any]:
        """Return the tool as the model sees it: its input schema is the output schema."""
        return {
            "name": self.name,
            "description": "Give the final result of your task. It ends your work: call it once, last.",
            "input_schema": self._schema,
        }

    async def call(self, arguments: dict[str, Any]) -> ToolResult:
        """Store the answer if it is valid. A process that can be killed checks it."""
        try:
            problem = await killable(lambda: self._problem(arguments), self._seconds)
        except TimeoutError:
            return ToolResult.failure(
                f"The answer could not be held against its schema within {self._seconds:g} s: call it again "
                "with shorter and simpler values."
            )
        except (WorkDied, OSError) as error:
            return ToolResult.failure(
                f"The answer could not be held against its schema ({error}): call it again, with less in it."
            )
        if problem is not None:
            return ToolResult.failure(
                f"The answer does not fit its schema: {problem}. Call it again, mended."
            )
        self._answers.append(arguments[WRAPPER] if self._wrapped else arguments)
        return ToolResult.of_text("The answer is taken.")

    def _problem(self, arguments: dict[str, Any]) -> str | None:
        try:
            error = best_match(self._validator.iter_errors(arguments))
        except RecursionError:
            return "it, or the schema, goes too deep to be checked"
        return None if error is None else _sentence(error)

    async def aclose(self) -> None:
        """Do nothing: no resource is held."""


def _stands_alone(schema: JsonSchema) -> bool:
    """Whether the API takes the schema as a tool's input: an object, no choice at its root, plain names."""
    if not isinstance(schema, dict) or schema.get("type") != "object":
        return False
    properties = schema.get("properties") or {}
    has_plain_names = isinstance(properties, dict) and all(map(_PLAIN_NAME.fullmatch, properties))
    return has_plain_names and not schema.keys() & {"anyOf", "oneOf", "allOf", "$ref"}


def _in_object(schema: JsonSchema) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {WRAPPER: embedded(schema, f"#/properties/{WRAPPER}")},
        "required": [WRAPPER],
        "additionalProperties": False,
    }


def _sentence(error: ValidationError) -> str:
    return f"{_cut(error.json_path, 200)}: {_cut(error.message, 500)}"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[:most] + "…"
