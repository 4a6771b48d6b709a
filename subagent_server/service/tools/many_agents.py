"""The two tools in place of a tool for each agent, where there are many: `run_agent` and `list_agents`."""

import asyncio

from subagent_server.domain.definitions import RUN_AGENT_NAME
from subagent_server.service.tools.answers import agents_answer, run_answer
from subagent_server.service.tools.call import Call
from subagent_server.service.tools.context import ToolContext
from subagent_server.service.tools.pages import digest_of, page_of
from subagent_server.service.tools.run_tools import RUN_ARGUMENTS, run_agent
from subagent_server.service.tools.schema import arguments, text
from subagent_server.service.tools.spec import Answer, ToolHints, ToolSpec

PAGE_AGENTS = 20
"""The most agents in one answer of `list_agents`."""
MAX_DESCRIPTION_CHARACTERS = 1_000
"""The most characters of an agent's description in an answer of `list_agents`."""


async def _run_agent(context: ToolContext, call: Call) -> Answer:
    offered = await asyncio.to_thread(context.offer.now)
    return await run_agent(offered.named(call.arguments["agent"]).name, context, call)


RUN_AGENT = ToolSpec(
    name=RUN_AGENT_NAME,
    title="Run an agent",
    description="Start a run of an agent. list_agents finds the agent.",
    arguments=arguments(["agent", "prompt"], agent=text("Its name"), **RUN_ARGUMENTS["properties"]),
    answer=run_answer,
    handler=_run_agent,
    roles=frozenset({"parent"}),
    hints=ToolHints(destructive=None, idempotent=None, open_world=True),
    in_sight=True,
)


async def _list_agents(context: ToolContext, call: Call) -> Answer:
    return await asyncio.to_thread(_found, context, call.get("query", ""), call.get("cursor"))


def _found(context: ToolContext, query: str, cursor: str | None) -> Answer:
    agents = context.offer.now().matching(query)
    page = page_of(agents, digest_of([agent.name for agent in agents]), PAGE_AGENTS, cursor)
    answer: Answer = {
        "agents": [
            {"agent": agent.name, "description": _shortened(agent.description)} for agent in page.items
        ],
        "total": len(agents),
        "instructions": "Next: run_agent(agent=..., prompt=...)."
        if agents
        else "No agent has a word of the query: ask for others, or for all without a query.",
    }
    return answer if page.next_cursor is None else {**answer, "nextCursor": page.next_cursor}


def _shortened(description: str) -> str:
    if len(description) <= MAX_DESCRIPTION_CHARACTERS:
        return description
    return description[: MAX_DESCRIPTION_CHARACTERS - 1] + "…"


LIST_AGENTS = ToolSpec(
    name="list_agents",
    title="List agents",
    description="The agents that run_agent starts, by name; with a query the best matches first.",
    arguments=arguments(
        [],
        query=text("Words of a name or description", maxLength=500),
        cursor=text("From the last answer: the next page"),
    ),
    answer=agents_answer,
    handler=_list_agents,
    roles=frozenset({"parent"}),
    hints=ToolHints(read_only=True, idempotent=True),
    in_sight=True,
)

MANY_AGENTS = (RUN_AGENT, LIST_AGENTS)
