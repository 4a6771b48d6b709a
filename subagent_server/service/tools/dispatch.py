"""The dispatcher of tool calls: finds the tool, checks the arguments, calls its handler.

Both doors for models use the dispatcher: the MCP server, and the loop of an agent that may start others.
"""

import asyncio
from collections.abc import Sequence

from subagent_server.domain.errors import BadArgument, NoRoom, choices
from subagent_server.host.no_room import lack_of_room
from subagent_server.service.access import Caller
from subagent_server.service.changes import Changes
from subagent_server.service.context import Service
from subagent_server.service.tools.call import Call, check_arguments
from subagent_server.service.tools.context import ToolContext
from subagent_server.service.tools.many_agents import MANY_AGENTS
from subagent_server.service.tools.run_tools import run_tool
from subagent_server.service.tools.spec import Answer, ToolSpec
from subagent_server.service.tools.table import ToolTable, ToolTables


class ToolDispatcher:
    """Calls tools for a caller. `generic` are its generic tools; callers that are alike share tables."""

    def __init__(
        self,
        service: Service,
        changes: Changes,
        caller: Caller,
        generic: Sequence[ToolSpec],
        tables: ToolTables | None = None,
    ) -> None:
        self.generic = tuple(generic)
        self._by_name = {tool.name: tool for tool in generic}
        self._tables = tables or ToolTables(service, caller)
        self._context = ToolContext(service, changes, caller, self._tables.offer)
        self.kept_table: ToolTable | None = None
        """The table that was returned last."""

    @property
    def waiting(self) -> int:
        """How many calls wait for runs: a server that leaves lets all others finish."""
        return self._context.waiting

    def table(self) -> ToolTable:
        """Return the tools as they are now: the same table as long as no agent has changed.

        Looks at the files: call it off the event loop.
        """
        self.kept_table = table = self._tables.now(self.generic)
        return table

    async def call(self, name: str, call: Call) -> Answer:
        """Call a tool and return its answer.

        Raises:
            SubagentError: the sentence names the fault and the remedy.
        """
        try:
            tool = self._by_name.get(name)
            if tool is None:
                tool = await asyncio.to_thread(self._starting_tool, name)
            check_arguments(tool.name, call.arguments, tool.arguments)
            return await tool.handler(self._context, call)
        except Exception as error:
            if (lack := lack_of_room(error)) is None:
                raise
            raise NoRoom(f"{name[:80]} could not be carried out. {lack}") from error

    def _starting_tool(self, name: str) -> ToolSpec:
        """Return the tool that starts an agent, listed or not: the number of agents may just have changed."""
        table = self.table()
        if (agent := table.offered.by_tool.get(name)) is not None:
            return run_tool(agent)
        for tool in MANY_AGENTS:
            if tool.name == name and table.offered.agents:
                return tool
        raise BadArgument(
            f"There is no tool {name[:80]!r}: {choices('tools', name, [tool.name for tool in table.tools])}."
        )
