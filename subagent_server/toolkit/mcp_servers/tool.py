"""A tool of an MCP server, as the loop sees it."""

import json
from typing import Any

from subagent_server.toolkit.mcp_servers.connection import CallAnswer, ServerConnection
from subagent_server.toolkit.mcp_servers.input_schema import input_schema
from subagent_server.toolkit.mcp_servers.naming import is_named
from subagent_server.toolkit.mcp_servers.offer import Offered
from subagent_server.toolkit.mcp_servers.reasons import ServerTrouble
from subagent_server.toolkit.mcp_servers.results import Attachments, converted
from subagent_server.toolkit.tool import ToolResult


class McpTool:
    """Calls one tool of one server. `offered.tool` is the server's description of it."""

    sequential = False

    def __init__(self, offered: Offered, connection: ServerConnection, attachments: Attachments) -> None:
        self.name = offered.name
        self.offered = offered
        self.connection = connection
        self._input = input_schema(offered.tool.input_schema)
        self._attachments = attachments

    def definition(self) -> dict[str, Any]:
        """Return the tool as the model sees it."""
        return {
            "name": self.name,
            "description": self._description(),
            "input_schema": self._input.schema,
        }

    def _description(self) -> str:
        tool = self.offered.tool
        parts = [tool.description or tool.title or f"A tool of the server {self.offered.server}."]
        if self._input.rule:
            parts.append(f"The arguments must also satisfy this JSON Schema: {self._input.rule}")
        if self._input.names:
            parts.append(f"Arguments called otherwise by the server: {json.dumps(self._input.names)}")
        return "\n\n".join(parts).encode("utf-8", "replace").decode()

    def answers_to(self, pattern: str) -> bool:
        """Whether a name in an agent file's `tools` means this tool."""
        return is_named([pattern], self.offered.server, self.offered.tool.name, self.name)

    async def call(self, arguments: dict[str, Any]) -> ToolResult:
        """Call the tool; every failure is a result for the model."""
        try:
            given = self._input.for_server(_sendable(arguments))
            answer = await self.connection.call(self.offered.tool.name, given)
        except ServerTrouble as trouble:
            return ToolResult.failure(trouble.what)
        result = converted(answer.result, self._attachments)
        remarks = [{"type": "text", "text": f"[{remark}]"} for remark in answer.remarks]
        return ToolResult([*remarks, *result.content], result.is_error)

    async def answer(self, arguments: dict[str, Any]) -> CallAnswer:
        """Call the tool with arguments in the server's own names, and return the whole result.

        Raises:
            ServerTrouble: the call failed.
        """
        return await self.connection.call(self.offered.tool.name, _sendable(arguments))

    async def aclose(self) -> None:
        """Do nothing: the worker closes the connection."""


def _sendable(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return arguments without half surrogate pairs: models write such, and no server takes them."""
    text = json.dumps(arguments, ensure_ascii=False).encode("utf-8", "replace")
    sendable: dict[str, Any] = json.loads(text)
    return sendable
