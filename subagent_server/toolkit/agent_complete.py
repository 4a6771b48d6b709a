"""The tool `agent_complete` of an agent that works by a contract, and the line that says the same."""

from typing import Any

from subagent_server.domain.errors import BadArgument
from subagent_server.domain.limits import MAX_REPORT_CHARACTERS, check_summary
from subagent_server.toolkit.tool import ToolResult

CONTRACT_COMPLETE = "[CONTRACT COMPLETE]"
"""As the last line of a reply it completes the contract, for a model that does not call the tool."""


def before_marker(text: str) -> str:
    """Return a text without its last line if that is the marker."""
    before, _, last = text.rstrip().rpartition("\n")
    return before.rstrip() if last.strip() == CONTRACT_COMPLETE else text


class AgentComplete:
    """Keeps the summary and the payload of the latest valid call, which ends the work of the agent."""

    name = "agent_complete"
    sequential = True

    def __init__(self, agent_id: str) -> None:
        self._agent_id = agent_id
        self.given = False
        self.summary = ""
        self.payload: str | None = None

    def definition(self) -> dict[str, Any]:
        """Return the tool as the model sees it."""
        return {
            "name": self.name,
            "description": (
                "Say that the contract is fulfilled. It ends your work: call it once, last. Whoever gave you "
                "the contract sees the summary and the payload, and nothing else."
            ),
            "input_schema": {
                "type": "object",
                "properties": {
                    "agent_id": {"type": "string", "description": "Your own agent_id."},
                    "summary": {
                        "type": "string",
                        "description": "The result in short.",
                        "maxLength": MAX_REPORT_CHARACTERS,
                    },
                    "payload": {
                        "type": "string",
                        "description": "The whole work product, if there is more than the summary.",
                    },
                },
                "required": ["agent_id", "summary"],
                "additionalProperties": False,
            },
        }

    async def call(self, arguments: dict[str, Any]) -> ToolResult:
        """Keep what is given, if it is valid and this agent's."""
        agent_id, summary, payload = (arguments.get(name) for name in ("agent_id", "summary", "payload"))
        if agent_id != self._agent_id:
            return ToolResult.failure(f"`agent_id` must be your own: you are {self._agent_id}.")
        if not isinstance(summary, str):
            return ToolResult.failure("`summary` must be a text: say in short what the result is.")
        if payload is not None and not isinstance(payload, str):
            return ToolResult.failure("`payload` must be a text; leave it out if there is none.")
        try:
            check_summary(summary)
        except BadArgument as error:
            return ToolResult.failure(error.sentence)
        self.given, self.summary, self.payload = True, summary, payload
        return ToolResult.of_text("The contract is complete.")

    async def aclose(self) -> None:
        """Do nothing: no resource is held."""
