"""The MCP door to the verbs: lists the tools of a role, calls the desk, presents what it says."""

import asyncio
import json
import sys
import traceback
from functools import partial
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext

from subagent_server.domain import trace_context
from subagent_server.domain.definitions import AgentDefinition
from subagent_server.domain.errors import SubagentError
from subagent_server.server import schemas
from subagent_server.server.patience import bearable_seconds
from subagent_server.server.relay import EventRelay
from subagent_server.service.access import Caller
from subagent_server.service.context import Service
from subagent_server.service.nesting import agents_of
from subagent_server.service.tools import table
from subagent_server.service.tools.dispatch import Answer, Call, Desk
from subagent_server.service.waiting import Changes
from subagent_server.settings import Role

Context = ServerRequestContext[Any, Any]
ADDED_BY_CLIENTS = frozenset({"wait_for_previous"})
"""Arguments that a client adds to every tool's schema for itself and passes on all the same: Gemini CLI's."""


def tool_names(service: Service, role: Role, caller: Caller) -> tuple[str, ...]:
    """Return the generic tools of a role; a child has the parent's only where it may start others.

    Raises:
        UnreadableMeta: what was asked of the child's run cannot be read.
    """
    if role != "child":
        own = () if role == "parent" else table.CHILD_TOOLS
        return (*table.PARENT_TOOLS, *own)
    leads = table.PARENT_TOOLS if agents_of(service, caller) else ("check_status",)
    return (*leads, *table.CHILD_TOOLS)


class ToolDesk:
    """Lists and calls the tools for one connection."""

    def __init__(
        self, service: Service, changes: Changes, role: Role, caller: Caller, relay: EventRelay
    ) -> None:
        self._settings = service.settings
        self._relay = relay
        self._desk = Desk(service, changes, caller, tool_names(service, role, caller))

    @property
    def busy(self) -> bool:
        """Whether a call is being worked on; one that waits for a run does not count."""
        return self._desk.busy > 0

    @property
    def leads(self) -> bool:
        """Whether the tools of a parent are among those of this role."""
        return set(table.PARENT_TOOLS) <= set(self._desk.names)

    async def list_tools(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        """Return the tools as they are now."""
        return types.ListToolsResult(tools=await asyncio.to_thread(self.tools))

    def tools(self) -> list[types.Tool]:
        """Return the tools of this role: the agents by name, then the generic set, always in this order."""
        agents = self._desk.shown()
        in_view = schemas.are_few(agents)
        tools = [self._agent_tool(agent, in_view) for agent in agents]
        return [*tools, *(self._generic_tool(name) for name in self._desk.names)]

    def _agent_tool(self, agent: AgentDefinition, in_view: bool) -> types.Tool:
        return types.Tool(
            name=agent.tool_name,
            title=f"Run {agent.name}",
            description=agent.description or f"Run the agent {agent.name}.",
            input_schema=table.RUN_AGENT,
            output_schema=schemas.run_output_schema(agent),
            annotations=types.ToolAnnotations(read_only_hint=False, open_world_hint=True),
            meta=schemas.in_sight(in_view),
        )

    def _generic_tool(self, name: str) -> types.Tool:
        title, description = table.DESCRIPTIONS[name]
        return types.Tool(
            name=name,
            title=title,
            description=description,
            input_schema=table.INPUTS[name],
            output_schema=schemas.generic_output_schema(name),
            annotations=types.ToolAnnotations(
                read_only_hint=name in schemas.READ_ONLY,
                destructive_hint=name in schemas.DESTRUCTIVE,
                idempotent_hint=name in schemas.READ_ONLY or name == "stop_run",
                open_world_hint=False,
            ),
            meta=schemas.in_sight(name in schemas.NEXT_CALLS),
        )

    async def call_tool(self, context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        """Call a tool. Whatever is wrong becomes a tool error in one sentence."""
        try:
            return _presented(await self._desk.call(params.name, self._call(context, params)))
        except SubagentError as error:
            return _refused(error.sentence)
        except Exception as error:  # noqa: BLE001 - the outermost frame of a call: the server stays alive
            traceback.print_exc(file=sys.stderr)
            return _refused(
                f"{params.name} met a fault of the server's own ({type(error).__name__}); "
                "its stderr has the details: please report it."
            )

    def _call(self, context: Context, params: types.CallToolRequestParams) -> Call:
        client = context.session.client_params
        name = client.client_info.name if client is not None and client.client_info is not None else None
        longest = bearable_seconds(name, self._settings.max_wait_seconds)

        async def progress(elapsed: float) -> None:
            await context.session.report_progress(elapsed, None, f"still waiting after {elapsed:.0f} s")

        beside, trace = partial(self._relay.beside, context), trace_context.checked(context.meta)
        return Call(_arguments(params), longest, progress, beside, trace)


def _arguments(params: types.CallToolRequestParams) -> dict[str, Any]:
    return {name: value for name, value in (params.arguments or {}).items() if name not in ADDED_BY_CLIENTS}


def _presented(answer: Answer) -> types.CallToolResult:
    text = json.dumps(answer, ensure_ascii=False, separators=(",", ":"))
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=text)], structured_content=answer
    )


def _refused(sentence: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=sentence)], is_error=True)
