"""The tools of the lifecycle: starting an agent by a contract, looking at it, completing it, stopping it.

Names, arguments and answers are those of the seed `agent_mcp_server.txt`; the verbs are those of all tools.
"""

import asyncio
from functools import partial
from typing import Any

from subagent_server.domain.errors import BadArgument
from subagent_server.domain.limits import MAX_PROMPT_CHARACTERS, MAX_REPORT_CHARACTERS
from subagent_server.domain.records import RunMeta
from subagent_server.service.lifecycle.agent_status import AgentStatus, agent_statuses, status_of
from subagent_server.service.lifecycle.contract_agent import contract_agent
from subagent_server.service.shown_runs import ENDED, MAX_SHOWN
from subagent_server.service.start import StartOrder, start_agent
from subagent_server.service.stop import stop
from subagent_server.service.tools.answers import record_answer
from subagent_server.service.tools.call import Call
from subagent_server.service.tools.context import ToolContext
from subagent_server.service.tools.schema import TEXTS, Schema, arguments, text
from subagent_server.service.tools.spec import LIST, Answer, ToolHints, ToolRole, ToolSpec
from subagent_server.service.update_status import structured_result, update_status

_PARENT: frozenset[ToolRole] = frozenset({"parent"})
_BOTH: frozenset[ToolRole] = frozenset({"parent", "child"})
_AGENT_ID = text("Id of the agent, as agent_start gave it")
_STARTED = ("agent_id", "status", "started_at", "stopped_at", "error")
_ENDED = ("status", "started_at", "completed_at", "stopped_at", "error")


async def _start(context: ToolContext, call: Call) -> Answer:
    contract, service = call.arguments["contract"], context.service
    if not contract.strip():
        raise BadArgument("The contract is empty: say what the agent shall do.")
    agent = contract_agent(service.settings.contract_model)
    order = StartOrder(agent=agent.name, prompt=contract, client=call.client)
    meta = await asyncio.to_thread(start_agent, service, agent, order, context.caller)
    await context.note_start(meta.run_id)
    started = _part(meta, _STARTED)
    return started if meta.status.is_terminal else started | {"status": "running"}


async def _status(context: ToolContext, call: Call) -> Answer:
    found = await asyncio.to_thread(
        agent_statuses, context.service, call.arguments["agent_ids"], context.caller, call.http_url
    )
    for shown in found:
        if shown.meta is not None and context.shown.revision(shown.meta.run_id) < ENDED:
            await context.note(shown.meta)
    return {LIST: [_wire(shown.status) for shown in found]}


async def _complete(context: ToolContext, call: Call) -> Answer:
    agent_id, summary, payload = call.arguments["agent_id"], call.arguments["summary"], call.get("payload")
    output = await structured_result(context.service, agent_id, payload, context.caller)
    observed = await asyncio.to_thread(
        update_status, context.service, agent_id, "completed", summary, payload, context.caller, output
    )
    await context.note(observed.meta)
    return _part(observed.meta, _ENDED)


async def _stop(context: ToolContext, call: Call) -> Answer:
    agent_id = call.arguments["agent_id"]
    observed = await asyncio.to_thread(stop, context.service, agent_id, None, context.caller)
    await context.note(observed.meta)
    return _part(observed.meta, _ENDED)


def _part(meta: RunMeta, fields: tuple[str, ...]) -> Answer:
    wire = _wire(status_of(meta))
    return {field: wire[field] for field in fields if field in wire}


def _wire(status: AgentStatus) -> Answer:
    return status.model_dump(mode="json", exclude_none=True)


def _answer_with(fields: tuple[str, ...]) -> Schema:
    properties: dict[str, Any] = record_answer(AgentStatus)["properties"]
    wanted = {field: properties[field] for field in fields}
    return {"type": "object", "properties": wanted, "required": ["status", "started_at"]}


def _answer_of_many() -> Schema:
    each = record_answer(AgentStatus)
    return {"type": "object", "properties": {LIST: {"type": "array", "items": each}}, "required": [LIST]}


LIFECYCLE_TOOLS: tuple[ToolSpec, ...] = (
    ToolSpec(
        name="agent_start",
        title="Start an agent by a contract",
        description=(
            "Start an agent that fulfils a contract by itself, and return its agent_id at once. "
            "agent_status shows how far it is."
        ),
        arguments=arguments(
            ["contract"],
            contract=text(
                "The whole task: the agent sees nothing else of your conversation",
                maxLength=MAX_PROMPT_CHARACTERS,
            ),
        ),
        answer=partial(_answer_with, _STARTED),
        handler=_start,
        roles=_PARENT,
        hints=ToolHints(destructive=None, idempotent=None, open_world=True),
        in_sight=True,
    ),
    ToolSpec(
        name="agent_status",
        title="Look at agents",
        description="State of agents: ready, running, stopped or completed, with preview, summary or error.",
        arguments=arguments(
            ["agent_ids"],
            agent_ids=TEXTS | {"description": "Ids of the agents", "maxItems": MAX_SHOWN},
        ),
        answer=_answer_of_many,
        handler=_status,
        roles=_BOTH,
        hints=ToolHints(read_only=True, idempotent=True),
        in_sight=True,
    ),
    ToolSpec(
        name="agent_complete",
        title="Complete an agent",
        description=(
            "For the agent itself: end its work as completed. An agent that has ended stays as it is."
        ),
        arguments=arguments(
            ["agent_id", "summary"],
            agent_id=_AGENT_ID,
            summary=text("The result in short", maxLength=MAX_REPORT_CHARACTERS),
            payload=text("The whole work product, if there is more than the summary"),
        ),
        answer=partial(_answer_with, _ENDED),
        handler=_complete,
        roles=_BOTH,
        hints=ToolHints(destructive=True, idempotent=True),
    ),
    ToolSpec(
        name="agent_stop",
        title="Stop an agent",
        description="End an agent and all that it started. An agent that has ended stays as it is.",
        arguments=arguments(["agent_id"], agent_id=_AGENT_ID),
        answer=partial(_answer_with, _ENDED),
        handler=_stop,
        roles=_PARENT,
        hints=ToolHints(destructive=True, idempotent=True),
    ),
)
