"""The tool `ask_parent`: an agent asks its parent for a decision."""

from typing import Any

from subagent_server.domain.errors import CallerError
from subagent_server.domain.question_schema import OPTIONS_SCHEMA, QUESTION_SCHEMA
from subagent_server.toolkit.run_context import RunContext
from subagent_server.toolkit.tool import ToolResult

NO_ANSWER = "No answer came in time. Go on without one: choose what is safest and say so in your result."


class AskParent:
    """Asks the parent one question. The call waits for the answer within its time; other calls go on."""

    name = "ask_parent"
    sequential = False

    def __init__(self, run: RunContext) -> None:
        self._run = run

    def definition(self) -> dict[str, Any]:
        """Return the tool as the model sees it."""
        return {
            "name": self.name,
            "description": (
                "Ask the parent that gave you this task one question and wait for the answer. Use it for "
                "decisions or facts that you cannot find yourself and that change what you do. Several "
                "calls in one turn ask several questions at once."
            ),
            "input_schema": {
                "type": "object",
                "properties": {
                    "question": QUESTION_SCHEMA | {"description": "The question, complete in itself."},
                    "options": OPTIONS_SCHEMA
                    | {"description": "Likely answers, if there are any; the parent may answer otherwise."},
                },
                "required": ["question"],
                "additionalProperties": False,
            },
        }

    async def call(self, arguments: dict[str, Any]) -> ToolResult:
        """Ask, wait, and return the answer, or a text that no answer came."""
        question, options = arguments.get("question"), arguments.get("options")
        if not isinstance(question, str):
            return ToolResult.failure("`question` must be a text: say what the parent shall decide.")
        if options is not None and not _is_texts(options):
            return ToolResult.failure("`options` must be a list of texts; leave it out if there are none.")
        try:
            reply = await self._run.ask(question, options)
        except CallerError as error:
            return ToolResult.failure(error.sentence)
        if reply.answer is None:
            return ToolResult.of_text(NO_ANSWER)
        return ToolResult.of_text(reply.answer)

    async def aclose(self) -> None:
        """Do nothing: no resource is held."""


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)
