"""The MCP servers of a run, as its worker connects, uses and closes them.

This imports the SDK of the protocol, which takes half a second of the processor and 28 MiB: only the worker
of an agent with MCP servers loads it.
"""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from subagent_server.sandbox.server_places import Builder, ServerStarts
from subagent_server.settings import state_directory_of
from subagent_server.toolbox.mcp.mcp_tools import Attachments, McpTool, Servers, ToolChoice, connect
from subagent_server.toolbox.mcp.server_connection import ServerContext
from subagent_server.worker.runners import RunnerSetup


@dataclass
class ConnectedServers:
    """The servers of a run, and the tools of these servers that the run may use."""

    servers: Servers
    tools: list[McpTool]

    def know(self, name: str) -> bool:
        """Whether a name in the agent file's `tools` means one of these tools."""
        return any(tool.answers_to(name) for tool in self.tools)

    async def aclose(self) -> None:
        """Close the servers."""
        await self.servers.aclose()


async def connect_servers(
    setup: RunnerSetup, own_names: Collection[str], build: Builder | None
) -> ConnectedServers:
    """Connect to the servers of an agent, all at once, and choose among their tools.

    `own_names` are taken already. `build` makes the boxes of those that work in one, beside each other.

    Raises:
        RunRefused: `config`, or `storage` if a box could not be made, naming the server and its words. No
            server is left connected.
    """
    agent, run = setup.agent, setup.run
    worktree, cwd = run.meta().worktree, Path.cwd()
    project = cwd if worktree is None else Path(worktree.origin)
    state = state_directory_of(setup.environment)
    starts = ServerStarts(agent, setup.environment, cwd, project, state, build, setup.protected.written)
    around = ServerContext(starts.start, run.record, run.masker, run.paths.server_logs)
    servers = await connect(agent.mcp_servers, around, agent.name)
    try:
        code_mode = agent.enabled_code_mode
        excluded = None if code_mode is None else code_mode.excluded_tools
        wanted = ToolChoice(agent.tools, agent.disallowed_tools, excluded)
        tools, warnings = servers.tools(wanted, set(own_names), Attachments(run.paths.outputs, run.masker))
    except BaseException:
        await servers.aclose(hurry=True)
        raise
    for warning in warnings:
        run.record("warning", message=warning)
    return ConnectedServers(servers, tools)
