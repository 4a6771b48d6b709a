"""The tools of a caller in the order of their list."""

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from subagent_server.domain.definitions import AgentDefinition
from subagent_server.service.access import Caller
from subagent_server.service.context import Service
from subagent_server.service.nesting import agents_of
from subagent_server.service.tools.child_tools import ASK_PARENT, UPDATE_STATUS
from subagent_server.service.tools.lifecycle_tools import LIFECYCLE_TOOLS
from subagent_server.service.tools.many_agents import MANY_AGENTS
from subagent_server.service.tools.offer import Offer, OfferedAgents
from subagent_server.service.tools.pages import digest_of
from subagent_server.service.tools.parent_tools import (
    CHECK_STATUS,
    CONTINUE_RUN,
    GET_LOGS,
    LIST_RUNS,
    MERGE_RUN,
    REPLY_SUBAGENT,
    STOP_RUN,
    WAIT_FOR_RUNS,
)
from subagent_server.service.tools.run_tools import run_tool
from subagent_server.service.tools.spec import ToolSpec
from subagent_server.settings import Role

TOOLS: tuple[ToolSpec, ...] = (
    CHECK_STATUS,
    WAIT_FOR_RUNS,
    LIST_RUNS,
    GET_LOGS,
    REPLY_SUBAGENT,
    STOP_RUN,
    CONTINUE_RUN,
    MERGE_RUN,
    ASK_PARENT,
    UPDATE_STATUS,
)
PARENT_TOOLS = tuple(tool for tool in TOOLS if "parent" in tool.roles)

PAGE_TOOLS = 100
"""The most tools in one answer of `tools/list`. Some clients (Gemini CLI) read the first page only."""
IN_VIEW_BYTES = 8_000
"""How much the descriptions of all agents may take together to be in every parent's sight."""


@dataclass(frozen=True)
class ToolTable:
    """The tools of a caller while these agents are offered, and the generic tools."""

    offered: OfferedAgents
    tools: tuple[ToolSpec, ...]

    @cached_property
    def digest(self) -> str:
        """A short text that differs as soon as a client would see another table."""
        return digest_of([_as_seen(tool) for tool in self.tools])


def table_of(offered: OfferedAgents, generic: Sequence[ToolSpec], max_tools: int) -> ToolTable:
    """Return the table: a tool for each agent, or two for all of them if there are more than `max_tools`.

    A table of several pages begins with the tools that a client needs if it reads one page: those two, which
    reach every agent, and the generic ones.
    """
    if len(offered.agents) > max_tools:
        return ToolTable(offered, (*MANY_AGENTS, *generic))
    in_sight = _are_few(offered.shown)
    starting = [run_tool(agent, in_sight=in_sight) for agent in offered.shown]
    if len(starting) + len(generic) > PAGE_TOOLS:
        return ToolTable(offered, (*MANY_AGENTS, *generic, *starting))
    return ToolTable(offered, (*starting, *generic))


class ToolTables:
    """The tables of callers that share an offer: one for all that have the same generic tools."""

    def __init__(self, service: Service, caller: Caller) -> None:
        self.offer = Offer(service, caller)
        self._max_tools = service.settings.max_tools
        self._tables: dict[tuple[str, ...], ToolTable] = {}
        self._making = threading.Lock()

    def now(self, generic: Sequence[ToolSpec]) -> ToolTable:
        """Return the tools as they are now: the same table as long as no agent has changed.

        Looks at the files: call it off the event loop. Who asks while they are read waits for that.
        """
        names = tuple(tool.name for tool in generic)
        with self._making:
            offered = self.offer.now()
            table = self._tables.get(names)
            if table is None or table.offered is not offered:
                self._tables[names] = table = table_of(offered, generic, self._max_tools)
        return table


def tools_of(service: Service, role: Role, caller: Caller) -> tuple[ToolSpec, ...]:
    """Return the generic tools of a role, and those of the lifecycle if they are offered.

    A child has the parent's tools only if the child may start others. It never starts or stops agents by
    contract: its agents are those that its file names.

    Raises:
        UnreadableMeta: the request of the child's run cannot be read.
    """
    lifecycle = LIFECYCLE_TOOLS if service.settings.contract_model is not None else ()
    if role == "parent":
        return (*PARENT_TOOLS, *lifecycle)
    if role == "child":
        lifecycle = tuple(filter(_is_for_children, lifecycle))
        if caller.run_id is not None and not agents_of(service, caller.run_id):
            return (*filter(_is_for_children, TOOLS), *lifecycle)
    return (*TOOLS, *lifecycle)


def _as_seen(tool: ToolSpec) -> str:
    answer = None if tool.answer is None else tool.answer()
    return json.dumps([tool.name, tool.title, tool.description, tool.in_sight, tool.shown_arguments, answer])


def _is_for_children(tool: ToolSpec) -> bool:
    return "child" in tool.roles


def _are_few(agents: Sequence[AgentDefinition]) -> bool:
    """Whether the tools of these agents are small enough together to be in every parent's sight."""
    return sum(len(agent.description.encode()) + 350 for agent in agents) <= IN_VIEW_BYTES
