"""The MCP servers of a run, as its worker connects, uses and closes them.

This imports the SDK of the protocol, which takes half a second of the processor and 28 MiB: only the worker
of an agent with MCP servers loads it.
"""

import asyncio
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from mcp_types import CallToolResult, TextContent
from mcp_types import Tool as ListedTool

from subagent_server.run.agent_definition import ServedAgent
from subagent_server.run.errors import SubagentError
from subagent_server.sandbox.server_locations import Builder, ServerStarts
from subagent_server.settings import state_directory_of
from subagent_server.toolbox.mcp.mcp_tools import Servers, ToolChoice, connect
from subagent_server.toolbox.mcp.server_connection import (
    CallAnswer,
    CallTimedOut,
    ServerConnection,
    ServerContext,
)
from subagent_server.toolbox.outputs import KeptOutputs
from subagent_server.worker.delegation import WorkerDelegation
from subagent_server.worker.runners import RunnerSetup


async def connect_servers(setup: RunnerSetup, own_names: Collection[str], build: Builder | None) -> Servers:
    """Connect to the servers of an agent, all at once, and choose among their tools.

    `own_names` are taken already. `build` makes the boxes of those that work in one, all at once.

    Raises:
        RunRefused: `config`, or `storage` if a box could not be made, naming the server and its words. No
            server is left connected.
    """
    agent, run = setup.agent, setup.run
    worktree, cwd = run.meta().worktree, Path.cwd()
    project = cwd if worktree is None else Path(worktree.origin)
    state = state_directory_of(setup.environment)
    starts = ServerStarts(agent, setup.environment, cwd, project, state, build, setup.protected.written)
    around = ServerContext(starts.start, run.record, run.masker, run.paths.server_logs, setup.watch)
    servers = await connect(agent.mcp_servers, around, agent.name)
    if setup.delegation is not None:
        delegation = setup.delegation
        servers.connections += [
            AgentAsServer(name, served, delegation, around) for name, served in agent.served.items()
        ]
    try:
        code_mode = agent.enabled_code_mode
        excluded = None if code_mode is None else code_mode.excluded_tools
        wanted = ToolChoice(agent.tools, agent.disallowed_tools, excluded)
        warnings = servers.choose(wanted, set(own_names), KeptOutputs(run.paths.outputs, run.masker))
    except BaseException:
        await servers.aclose(hurry=True)
        raise
    for warning in warnings:
        run.record("warning", message=warning)
    return servers


class AgentAsServer(ServerConnection):
    """An agent that its parent has as an MCP server (`agents/named_servers.py`): one tool, and no process.

    It has all that a server has (`prefix`, `enabledTools`, functions of code mode), and a call does what
    a call of the parent's own tools does: the clock stops while it waits for the run.
    """

    def __init__(
        self, name: str, served: ServedAgent, delegation: WorkerDelegation, around: ServerContext
    ) -> None:
        super().__init__(name, served.entry, around)
        self._delegation = delegation
        self.watch = None  # its run has one of its own
        tool = delegation.tool(served.agent)
        schema = None if tool.answer is None else tool.answer()
        self.tools = [
            ListedTool(
                name=tool.name,
                description=tool.description,
                input_schema=tool.shown_arguments,
                output_schema=schema,
            )
        ]

    async def call(self, tool: str, arguments: dict[str, Any]) -> CallAnswer:
        """Start the agent, and return the view of its run. Raises CallTimedOut."""
        seconds = self.definition.call_timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                view = await self._delegation.call(tool, arguments)
        except TimeoutError as error:
            raise CallTimedOut(
                f"{tool} did not end within {seconds:g} s; the run continues, and list_runs shows it."
            ) from error
        except SubagentError as error:
            content = [TextContent(type="text", text=error.sentence)]
            return CallAnswer(CallToolResult(content=[*content], is_error=True), [])
        text = json.dumps(view, ensure_ascii=False, separators=(",", ":"))
        return CallAnswer(
            CallToolResult(content=[TextContent(type="text", text=text)], structured_content=view), []
        )
