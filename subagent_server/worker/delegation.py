"""The parent's tools for an agent that may start others: its run is the parent of the started runs.

This imports the tools of the server with all their verbs, a third of a second: only the worker of an agent
that may start others loads it.
"""

from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any

from subagent_server.run.agent_definition import AgentDefinition, tool_name
from subagent_server.settings import read_settings
from subagent_server.tools.parent_tools import run_tool
from subagent_server.tools.spec import Call, ToolSpec
from subagent_server.tools.tool_table import PARENT_TOOLS, ToolDispatcher
from subagent_server.verbs.access import run_as_caller
from subagent_server.verbs.check_agent import AgentChecker
from subagent_server.verbs.service import Service, open_service
from subagent_server.verbs.wait_for_runs import Changes
from subagent_server.worker.worker_run import WorkerRun

LONGEST_WAIT_SECONDS = 3600.0
"""A wait of the loop has no client that could lose patience; the run's own limits bound it."""


class WorkerDelegation:
    """Implements `toolbox.basic.Delegation` with the tool calls that the server has too."""

    def __init__(self, run: WorkerRun, environment: Mapping[str, str], agent: AgentDefinition) -> None:
        self.service = service_of(run, environment, agent)
        caller = run_as_caller(self.service.store, run.run_id)
        self._tools = ToolDispatcher(self.service, Changes(self.service.store), caller, PARENT_TOOLS)
        self._clock = run.clock
        served = {each.agent.name for each in agent.served.values()}
        self._of_servers = {tool_name(name) for name in served.difference(agent.agents)}

    def definitions(self) -> list[dict[str, Any]]:
        """Return the tools: those that start the agents that the run may start, then the generic tools.

        The agents that the run has as MCP servers are left out: their tools come as those of servers.
        """
        return [
            {"name": tool.name, "description": tool.description, "input_schema": tool.shown_arguments}
            for tool in self._tools.table().tools
            if tool.name not in self._of_servers
        ]

    def tool(self, agent: AgentDefinition) -> ToolSpec:
        """Return the tool that starts an agent."""
        return run_tool(AgentChecker(self.service).as_shown(agent))

    async def call(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Call a verb. While the verb waits for another run, the clock of this run stops.

        Raises:
            SubagentError.
        """
        return await self._tools.call(tool, Call(arguments, LONGEST_WAIT_SECONDS, during_wait=self._waiting))

    @asynccontextmanager
    async def _waiting(self, _: Collection[str]) -> AsyncIterator[None]:
        with self._clock.waiting():
            yield


def service_of(run: WorkerRun, environment: Mapping[str, str], agent: AgentDefinition) -> Service:
    """Return the verbs for a run of `agent`, with the settings in its `environment`."""
    settings = read_settings(runs=run.store.paths.root, environment=dict(environment))
    return open_service(settings, also=[each.agent for each in agent.served.values()])
