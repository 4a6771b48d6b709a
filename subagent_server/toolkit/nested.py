"""The tools that start other agents and follow them, for an agent whose file names some in `agents`."""

import json
from typing import Any, Protocol

from subagent_server.domain.errors import SubagentError
from subagent_server.toolkit.tool import ToolResult


class Delegation(Protocol):
    """The parent's tools of one run. The worker implements it."""

    def definitions(self) -> list[dict[str, Any]]:
        """Return the tools, as entries of `tools` in a Messages request."""
        ...

    async def call(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Call a tool. Time spent waiting for another run is not working time.

        Raises:
            SubagentError: the call failed; its sentence is for the model.
        """
        ...


class NestedTool:
    """One tool of a parent."""

    sequential = False

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

    async def aclose(self) -> None:
        """Do nothing: the end of a run ends the runs that it has started."""


def nested_tools(delegation: Delegation) -> list[NestedTool]:
    """Return the parent's tools of a run."""
    return [NestedTool(delegation, definition) for definition in delegation.definitions()]
