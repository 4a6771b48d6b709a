"""The tools by which an agent asks its parent, ends its run, and starts other agents."""

import json
from typing import Annotated, Any, Protocol

from pydantic import Field

from subagent_server.run.agent_definition import JsonSchema
from subagent_server.run.commands import CHECK_SECONDS, misfit
from subagent_server.run.errors import BadArgument, SubagentError
from subagent_server.run.schemas import NEWEST, embedded, validator_name
from subagent_server.run.states import (
    MAX_OPTION_CHARACTERS,
    MAX_OPTIONS,
    MAX_QUESTION_CHARACTERS,
    MAX_REPORT_CHARACTERS,
    check_summary,
)
from subagent_server.toolbox.mcp.input_schemas import PROPERTY, repaired, without_dead_references
from subagent_server.toolbox.run_context import RunContext
from subagent_server.toolbox.tool import Tool, ToolResult
from subagent_server.toolbox.workspace import Arguments, definition_of, parse_arguments

NO_ANSWER = "No answer came in time. Continue without one: choose what is safest and say so in your result."


# Bounds are only shown here: the check that refuses an excess has a sentence of its own.
_Option = Annotated[str, Field(json_schema_extra={"maxLength": MAX_OPTION_CHARACTERS})]


class _AskArguments(Arguments):
    question: str = Field(
        description="The question, complete in itself.",
        json_schema_extra={"maxLength": MAX_QUESTION_CHARACTERS},
    )
    options: list[_Option] | None = Field(
        default=None,
        description="Likely answers, if there are any; the parent may answer otherwise.",
        json_schema_extra={"maxItems": MAX_OPTIONS},
    )


class AskParent(Tool):
    """Asks the parent one question. The call waits for the answer within its time; other calls continue."""

    name = "ask_parent"

    def __init__(self, run: RunContext) -> None:
        self._run = run

    def definition(self) -> dict[str, Any]:
        """Return the tool as the model sees it."""
        about = (
            "Ask the parent that gave you this task one question and wait for the answer. Use it for "
            "decisions or facts that you cannot find yourself and that change what you do. Several "
            "calls in one turn ask several questions at once."
        )
        return definition_of(self.name, about, _AskArguments)

    async def call(self, arguments: dict[str, Any]) -> ToolResult:
        """Ask, wait, and return the answer, or a text for the model if none came."""
        asked = parse_arguments(_AskArguments, arguments)
        reply = await self._run.ask(asked.question, asked.options)
        return ToolResult.of_text(NO_ANSWER if reply.answer is None else reply.answer)


# -- The tool `final_answer`: the structured result of an agent with an output schema (SPEC section 7).


WRAPPER = "value"


class FinalAnswer(Tool):
    """Keeps the arguments of the latest valid call. The model may repeat an invalid call, corrected.

    A check against `schema`, by its own draft, takes `seconds` at most. The model sees each schema as one of
    2020-12, as the API wants it.
    """

    name = "final_answer"
    sequential = True

    def __init__(self, schema: JsonSchema, seconds: float = CHECK_SECONDS) -> None:
        shown = _in_newest_draft(schema)
        self._wrapped = not _is_self_contained(shown)
        self._shown = _in_object(shown) if self._wrapped else shown
        self._schema = schema
        self.has_answer = False
        self.answer: Any = None
        """That of the latest valid call, unwrapped."""
        self._refusal = ""
        self._seconds = seconds

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
            return ToolResult.failure(f"The answer {problem}. Call it again, fixed.")
        self.has_answer, self.answer = True, answer
        return ToolResult.of_text("The answer is taken.")


def _in_newest_draft(schema: JsonSchema) -> Any:
    if validator_name(schema) == NEWEST:
        return schema
    modern = repaired(schema)
    return without_dead_references(modern, modern)


def _is_self_contained(schema: Any) -> bool:
    """Whether the API takes the schema as a tool's input: an object, no choice at its root, plain names."""
    if not isinstance(schema, dict) or schema.get("type") != "object":
        return False
    properties = schema.get("properties") or {}
    has_plain_names = isinstance(properties, dict) and all(map(PROPERTY.fullmatch, properties))
    return has_plain_names and not schema.keys() & {"anyOf", "oneOf", "allOf", "$ref"}


def _in_object(schema: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {WRAPPER: embedded(schema, f"#/properties/{WRAPPER}")},
        "required": [WRAPPER],
        "additionalProperties": False,
    }


# -- The tool `agent_complete` of an agent that works by a contract, and the line that means the same.


CONTRACT_COMPLETE = "[CONTRACT COMPLETE]"
"""As the last line of a reply it completes the contract, for a model that does not call the tool."""


def before_marker(text: str) -> str:
    """Return a text without its last line if that is the marker."""
    before, _, last = text.rstrip().rpartition("\n")
    return before.rstrip() if last.strip() == CONTRACT_COMPLETE else text


class _CompleteArguments(Arguments):
    agent_id: str = Field(description="Your own agent_id.")
    summary: str = Field(
        description="The result in short.", json_schema_extra={"maxLength": MAX_REPORT_CHARACTERS}
    )
    payload: str | None = Field(
        default=None, description="The whole work product, if there is more than the summary."
    )


class AgentComplete(Tool):
    """Keeps the summary and the payload of the latest valid call, which ends the work of the agent."""

    name = "agent_complete"
    sequential = True

    def __init__(self, agent_id: str) -> None:
        self._agent_id = agent_id
        self.has_answer = False
        self.summary = ""
        self.payload: str | None = None

    def definition(self) -> dict[str, Any]:
        """Return the tool as the model sees it."""
        about = (
            "Say that the contract is fulfilled. It ends your work: call it once, last. Whoever gave you "
            "the contract sees the summary and the payload, and nothing else."
        )
        return definition_of(self.name, about, _CompleteArguments)

    async def call(self, arguments: dict[str, Any]) -> ToolResult:
        """Keep the arguments, if they are valid and this agent's."""
        end = parse_arguments(_CompleteArguments, arguments)
        if end.agent_id != self._agent_id:
            raise BadArgument(f"`agent_id` must be your own: you are {self._agent_id}.")
        check_summary(end.summary)
        self.has_answer, self.summary, self.payload = True, end.summary, end.payload
        return ToolResult.of_text("The contract is complete.")


# -- The tools that start other agents and follow them, for an agent whose file names some in `agents`.


class Delegation(Protocol):
    """The parent's tools of one run. The worker implements it."""

    @property
    def service(self) -> Any:
        """The verbs (`verbs.service.Service`), for a program that starts others."""

    def definitions(self) -> list[dict[str, Any]]:
        """Return the tools, as entries of `tools` in a Messages request."""

    async def call(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Call a tool. Time spent waiting for another run is not working time.

        Raises:
            SubagentError: the call failed; its sentence is for the model.
        """


class NestedTool(Tool):
    """One tool of a parent."""

    def __init__(self, delegation: Delegation, definition: dict[str, Any]) -> None:
        self.name = str(definition["name"])
        self._delegation = delegation
        self._definition = definition

    def definition(self) -> dict[str, Any]:
        """Return the tool as the model sees it."""
        return self._definition

    async def call(self, arguments: dict[str, Any]) -> ToolResult:
        """Call the verb and return its answer as JSON."""
        try:
            answer = await self._delegation.call(self.name, arguments)
        except SubagentError as error:
            return ToolResult.failure(error.sentence)
        return ToolResult.of_text(json.dumps(answer, ensure_ascii=False, separators=(",", ":")))
