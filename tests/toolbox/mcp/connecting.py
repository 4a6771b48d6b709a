"""Servers connected as a run connects them, without a run around them."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from subagent_server.run.agent_definition import AgentDefinition, ServerDefinition
from subagent_server.run.files import Directory
from subagent_server.run.secrets import Masker
from subagent_server.sandbox.server_locations import ServerStarts
from subagent_server.toolbox.mcp.mcp_tools import McpTool, Servers, ToolChoice, connect
from subagent_server.toolbox.mcp.server_connection import ServerContext
from subagent_server.toolbox.outputs import KeptOutputs
from subagent_server.toolbox.tool import ToolResult

BOUND = 120.0


class Field:
    """Servers that are connected, their tools by name, and the events of the run."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.servers = Servers()
        self.tools: dict[str, McpTool] = {}

    def record(self, kind: str, **facts: Any) -> None:
        """Take an event for the journal."""
        self.events.append((kind, facts))

    def said(self, kind: str) -> list[dict[str, Any]]:
        """Return the facts of the events of one kind."""
        return [facts for name, facts in self.events if name == kind]

    def protocols(self) -> dict[str, str]:
        """Return which protocol each server speaks."""
        return {each.name: each.facts()["protocolVersion"] for each in self.servers.connections}

    async def call(self, name: str, **arguments: Any) -> ToolResult:
        """Call a tool."""
        async with asyncio.timeout(BOUND):
            return await self.tools[name].call(arguments)


@asynccontextmanager
async def connected(
    home: Path, secrets: tuple[str, ...] = (), /, **servers: dict[str, Any]
) -> AsyncIterator[Field]:
    """Connect to servers, given by the keys of an agent file."""
    field = Field(home)
    unboxed = AgentDefinition(name="worker", sandbox="none")
    starts = ServerStarts(unboxed, {"PATH": os.environ["PATH"], "HOME": str(home)}, home, home)
    around = ServerContext(starts.start, field.record, Masker(secrets), Directory(home / "mcp"))
    definitions = {name: ServerDefinition.model_validate(keys) for name, keys in servers.items()}
    async with asyncio.timeout(BOUND):
        field.servers = await connect(definitions, around, "worker")
    try:
        warnings = field.servers.choose(ToolChoice(), (), KeptOutputs(Directory(home / "outputs")))
        field.tools = {tool.name: tool for tool in field.servers.tools}
        for warning in warnings:
            field.record("warning", message=warning)
        yield field
    finally:
        async with asyncio.timeout(BOUND):
            await field.servers.aclose()
