"""The tools `run_<agent>`: one spec for each agent."""

import asyncio
from functools import partial

from subagent_server.domain.definitions import AgentDefinition
from subagent_server.service.start import StartOrder, start
from subagent_server.service.tools.answers import output_answer
from subagent_server.service.tools.call import Call
from subagent_server.service.tools.context import ToolContext
from subagent_server.service.tools.schema import TEXTS, arguments, brief, text, wait
from subagent_server.service.tools.spec import Answer, ToolHints, ToolSpec

RUN_CHECKED = arguments(
    ["prompt"],
    prompt=text("The whole task: it sees nothing else of your conversation"),
    inputs=TEXTS | {"description": "Paths of files for it, relative to cwd"},
    waitSeconds=wait(0, "Seconds to wait until it ends or asks; for several at once 0, then wait_for_runs"),
    label=text("Your name for this run, to tell several apart"),
    cwd=text("Directory to work in, if not yours"),
)
"""What a call of `run_<agent>` has to fit."""

RUN_SHOWN = brief(RUN_CHECKED)
"""The same as a model sees it, once for each agent: every parent pays for each byte."""


def run_tool(agent: AgentDefinition, *, in_sight: bool = True) -> ToolSpec:
    """Return the tool that starts runs of an agent, described as `AgentChecker.as_shown` left it."""
    return ToolSpec(
        name=agent.tool_name,
        title=f"Run {agent.name}",
        description=agent.description,
        arguments=RUN_CHECKED,
        shown=RUN_SHOWN,
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
