"""The dispatcher of tool calls: finds the tool, checks the arguments, calls its handler.

Both doors for models use the dispatcher: the MCP server, and the loop of an agent that may start others.
"""

import asyncio
from collections.abc import Sequence

from subagent_server.domain.definitions import AgentDefinition
from subagent_server.domain.errors import BadArgument
from subagent_server.service.access import Caller
from subagent_server.service.changes import Changes
from subagent_server.service.check_agent import AgentChecker
from subagent_server.service.context import Service
from subagent_server.service.nesting import agents_of
from subagent_server.service.tools.call import Call, check_arguments
from subagent_server.service.tools.context import ToolContext
from subagent_server.service.tools.run_tools import run_tool
from subagent_server.service.tools.spec import Answer, ToolSpec


class ToolDispatcher:
    """Calls tools for a caller. `tools` are the caller's generic tools."""

    def __init__(self, service: Service, changes: Changes, caller: Caller, tools: Sequence[ToolSpec]) -> None:
        self.tools = tuple(tools)
        self._by_name = {tool.name: tool for tool in tools}
        self._context = ToolContext(service, changes, caller)

    @property
    def waiting(self) -> int:
        """How many calls wait for runs: a server that leaves lets all others finish."""
        return self._context.waiting

    def agents(self) -> list[AgentDefinition]:
        """Return the agents that the caller may start, by name."""
        service = self._context.service
        allowed = agents_of(service, self._context.caller)
        return [agent for agent in service.registry.agents() if agent.name in allowed]

    def shown_agents(self) -> list[AgentDefinition]:
        """Return the agents that the caller may start, as models may see them."""
        checker = AgentChecker(self._context.service)
        return [checker.as_shown(agent) for agent in self.agents()]

    async def call(self, name: str, call: Call) -> Answer:
        """Call a tool and return its answer.

        Raises:
            SubagentError: the sentence names the fault and the remedy.
        """
        tool = self._by_name.get(name)
        if tool is None:
            tool = await asyncio.to_thread(self._run_tool, name)
        check_arguments(tool.name, call.arguments, tool.arguments)
        return await tool.handler(self._context, call)

    def _run_tool(self, name: str) -> ToolSpec:
        agents = self.agents()
        for agent in agents:
            if agent.tool_name == name:
                return run_tool(agent)
        names = ", ".join([*(agent.tool_name for agent in agents), *self._by_name])
        raise BadArgument(f"There is no tool {name[:80]!r}: the tools here are {names}.")
