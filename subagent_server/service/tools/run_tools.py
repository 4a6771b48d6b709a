"""The tools `run_<agent>`: one spec for each agent."""

import asyncio
from functools import partial

from subagent_server.domain.definitions import AgentDefinition
from subagent_server.service.start import StartOrder, start
from subagent_server.service.tools.answers import output_answer
from subagent_server.service.tools.call import Call
from subagent_server.service.tools.context import ToolContext
from subagent_server.service.tools.schema import MAX_WAIT_SECONDS, TEXTS, arguments, text
from subagent_server.service.tools.spec import Answer, ToolHints, ToolSpec

RUN_ARGUMENTS = arguments(
    ["prompt"],
    prompt=text("All it sees"),
    inputs=TEXTS | {"description": "Files"},
    waitSeconds={"type": "number", "minimum": 0, "maximum": MAX_WAIT_SECONDS, "description": "Default 0"},
    label=text("Name"),
    cwd=text("Where"),
)
"""In few words, because a parent reads them once for each agent. The instructions of the server say more."""


def run_tool(agent: AgentDefinition, *, in_sight: bool = True) -> ToolSpec:
    """Return the tool that starts runs of an agent, described as `AgentChecker.as_shown` left it."""
    return ToolSpec(
        name=agent.tool_name,
        title=f"Run {agent.name}",
        description=agent.description,
        arguments=RUN_ARGUMENTS,
        answer=None if agent.output_schema is None else partial(output_answer, agent.output_schema),
        handler=partial(run_agent, agent.name),
        roles=frozenset({"parent"}),
        hints=ToolHints(destructive=None, idempotent=None, open_world=True),
        in_sight=in_sight,
    )


async def run_agent(agent: str, context: ToolContext, call: Call) -> Answer:
    """Start a run of an agent and return its view, as every call that starts one does."""
    order = StartOrder(
        agent=agent,
        prompt=call.arguments["prompt"],
        inputs=call.get("inputs", []),
        cwd=call.get("cwd"),
        label=call.get("label"),
        client=call.client,
    )
    meta = await asyncio.to_thread(start, context.service, order, context.caller)
    return (await context.view_after_start(meta.run_id, call)).to_wire()
