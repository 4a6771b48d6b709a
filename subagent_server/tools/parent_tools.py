"""The tools of a parent: looking at runs, waiting for them, answering, ending and continuing them."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any, cast

from subagent_server.run.agent_definition import RUN_AGENT_NAME, AgentDefinition
from subagent_server.run.schemas import shown_schema
from subagent_server.run.states import Status, cut
from subagent_server.tools.spec import (
    RUN_ID,
    TEXTS,
    Answer,
    Call,
    Schema,
    ToolContext,
    ToolHints,
    ToolSpec,
    answer,
    arguments,
    count,
    digest_of,
    output_answer,
    page_of,
    take_as_meant,
    text,
    wait,
)
from subagent_server.verbs.access import MAX_SHOWN
from subagent_server.verbs.continue_run import ContinueOrder, continue_run
from subagent_server.verbs.end_run import stop
from subagent_server.verbs.get_logs import LogPage, get_logs
from subagent_server.verbs.list_runs import list_runs
from subagent_server.verbs.merge_run import merge_run
from subagent_server.verbs.questions import masked_note, reply
from subagent_server.verbs.reconcile import observe
from subagent_server.verbs.start import StartOrder, start
from subagent_server.verbs.views import RunView, row_schema
from subagent_server.verbs.wait_for_runs import Wait, WaitResult, Watchlist
from subagent_server.worktrees.merging import MERGE_WAYS

_READ_ONLY = ToolHints(read_only=True, idempotent=True)


async def _check_status(context: ToolContext, call: Call) -> Answer:
    named = call.get("messageId")
    observed = await asyncio.to_thread(
        observe, context.service.store, call.arguments["runId"], context.caller
    )
    if named is not None and context.is_asker(observed.meta.run_id, named):
        return (await context.view_after_answer(observed, named, call, 0)).to_wire()
    return (await context.view_after_wait(observed, call, named)).to_wire()


CHECK_STATUS = ToolSpec(
    name="check_status",
    title="Check a run",
    description="A run's state: progress, open questions, result or error, what to call next.",
    arguments=arguments(
        ["runId"],
        runId=RUN_ID,
        messageId=text("Only for the asker"),
        waitSeconds=wait(0),
    ),
    answer=partial(shown_schema, RunView),
    handler=_check_status,
    roles=frozenset({"parent", "child"}),
    in_sight=True,
)


async def _wait_for_runs(context: ToolContext, call: Call) -> Answer:
    watch = await asyncio.to_thread(
        Watchlist,
        context.service,
        call.get("runIds"),
        call.get("cursor"),
        context.caller,
        context.shown,
        call.next_calls,
    )
    wait_for = call.get("waitFor", "any")
    seconds = call.wait_seconds(45)
    async with call.waiting_for(watch.run_ids, seconds):
        within = Wait(seconds, frozenset(watch.run_ids), call.progress)
        found: WaitResult | None = await context.waited(lambda: watch.look(wait_for), within)
    result = found if found is not None else await asyncio.to_thread(watch.now)
    for run_id in [*result.working, *(result.later or [])]:
        context.shown.note(run_id)
    for view in result.runs:
        await context.note(view, call)
    note = call.wait_note(45) if found is None else None
    return result.model_copy(update={"wait_note": note}).to_wire()


WAIT_FOR_RUNS = ToolSpec(
    name="wait_for_runs",
    title="Wait for runs",
    description=(
        "Wait for runs, by default all you started, until one ends or asks (waitFor all: until all have "
        "ended or one asks). Shows each question and end once. Start all in one turn, with labels, then call "
        "it."
    ),
    arguments=arguments(
        [],
        runIds=TEXTS | {"description": "Only these", "maxItems": MAX_SHOWN},
        waitFor={"enum": ["any", "all"], "description": "Default any"},
        waitSeconds=wait(45, "Long waits cost nothing"),
        cursor=text("Of an earlier connection"),
    ),
    answer=partial(shown_schema, WaitResult),
    handler=_wait_for_runs,
    hints=_READ_ONLY,
    in_sight=True,
)


async def _list_runs(context: ToolContext, call: Call) -> Answer:
    listed = await asyncio.to_thread(
        list_runs,
        context.service.store,
        status=Status(call.arguments["status"]) if "status" in call.arguments else None,
        agent=call.get("agent"),
        limit=call.get("limit", 20),
        caller=context.caller,
        everyone=call.get("all", False),
    )
    return listed.to_wire()


LIST_RUNS = ToolSpec(
    name="list_runs",
    title="List runs",
    description="Your runs: those that need an answer, then the newest.",
    arguments=arguments(
        [],
        status={"enum": [status.value for status in Status], "description": "Only these"},
        agent=text("Only of this agent"),
        limit=count(500, 20, "How many"),
        all={"type": "boolean", "description": "Also other parents' runs"},
    ),
    answer=lambda: answer(
        ["runs"], runs={"type": "array", "items": row_schema()}, otherParents=text(), omitted=text()
    ),
    handler=_list_runs,
    hints=_READ_ONLY,
)


async def _get_logs(context: ToolContext, call: Call) -> Answer:
    page = await asyncio.to_thread(
        get_logs,
        context.service,
        call.arguments["runId"],
        call.get("stream", "log"),
        call.get("cursor"),
        call.get("lines", 50),
        context.caller,
    )
    return page.to_wire()


GET_LOGS = ToolSpec(
    name="get_logs",
    title="Read a run's log",
    description="A page of a run's log (its last lines), events, whole result or payload.",
    arguments=arguments(
        ["runId"],
        runId=RUN_ID,
        stream={"enum": ["log", "events", "result", "payload"], "description": "Default log"},
        cursor=text("From the last page"),
        lines=count(1000, 50, "Of log or events"),
    ),
    answer=partial(shown_schema, LogPage),
    handler=_get_logs,
    hints=_READ_ONLY,
)


def _done() -> Schema:
    return answer(
        ["success", "message", "updatedMetadata"],
        success={"type": "boolean"},
        message=text(),
        updatedMetadata={"type": "object"},
    )


async def _reply(context: ToolContext, call: Call) -> Answer:
    arguments, message_id = call.arguments, call.get("messageId")
    observed = await asyncio.to_thread(
        reply, context.service, arguments["runId"], arguments["answer"], message_id, caller=context.caller
    )
    view = await context.view_after_wait(observed, call)
    message = f"The answer is recorded{masked_note(observed.meta, arguments['answer'])}."
    return {"success": True, "message": message, "updatedMetadata": view.to_wire()}


REPLY_SUBAGENT = ToolSpec(
    name="reply_subagent",
    title="Answer a subagent",
    description="Answer a run's question.",
    arguments=arguments(
        ["runId", "answer"],
        runId=RUN_ID,
        messageId=text("If several are open"),
        answer=text("What it is to know"),
        waitSeconds=wait(0),
    ),
    answer=_done,
    handler=_reply,
    in_sight=True,
)


async def _stop(context: ToolContext, call: Call) -> Answer:
    def stopped() -> RunView:
        observed = stop(context.service, call.arguments["runId"], call.get("reason"), context.caller)
        return context.view(observed, call)

    view = await asyncio.to_thread(stopped)
    await context.note(view, call)
    return view.to_wire()


STOP_RUN = ToolSpec(
    name="stop_run",
    title="Stop a run",
    description="End a run and all it started. An ended run stays as it is.",
    arguments=arguments(["runId"], runId=RUN_ID, reason=text("Why")),
    answer=partial(shown_schema, RunView),
    handler=_stop,
    hints=ToolHints(destructive=True, idempotent=True),
)


async def _continue(context: ToolContext, call: Call) -> Answer:
    order = ContinueOrder(
        call.arguments["runId"],
        call.get("prompt"),
        call.get("inputs", []),
        stored_agent=call.get("storedAgent", False),
        client=call.client,
    )
    begin = partial(continue_run, context.service, order, context.caller)
    return (await context.view_after_start(begin, call)).to_wire()


CONTINUE_RUN = ToolSpec(
    name="continue_run",
    title="Continue a run",
    description="Continue an ended run and its whole conversation, as a new run.",
    arguments=arguments(
        ["runId"],
        runId=RUN_ID,
        prompt=text("Next task; else it continues where it was cut"),
        inputs=TEXTS | {"description": "More files"},
        storedAgent={"type": "boolean", "description": "The agent as the run had it"},
        waitSeconds=wait(0),
    ),
    answer=partial(shown_schema, RunView),
    handler=_continue,
)


async def _merge(context: ToolContext, call: Call) -> Answer:
    def merged() -> Answer:
        run_id = call.arguments["runId"]
        done = merge_run(context.service, run_id, call.get("how", "merge"), context.caller)
        observed = observe(context.service.store, done.run_id, context.caller)
        view = context.view(observed, call).to_wire()
        return {"success": True, "message": done.sentence, "updatedMetadata": view}

    return await asyncio.to_thread(merged)


MERGE_RUN = ToolSpec(
    name="merge_run",
    title="Merge a run's changes",
    description=(
        "Merge what an ended run changed in its git worktree into its origin; conflicts change nothing."
    ),
    arguments=arguments(
        ["runId"],
        runId=RUN_ID,
        how={"enum": list(MERGE_WAYS), "description": "Default merge"},
    ),
    answer=_done,
    handler=_merge,
)


# -- The tools `run_<agent>`: one spec for each agent.


RUN_ARGUMENTS = arguments(
    ["prompt"],
    prompt=text("All it sees"),
    inputs=TEXTS | {"description": "Files"},
    waitSeconds={"type": "number", "minimum": 0, "description": "Default 0"},
    label=text("Name"),
    cwd=text("Where"),
)
"""In few words, because a parent reads them once for each agent. The instructions of the server have more."""


def run_tool(agent: AgentDefinition) -> ToolSpec:
    """Return the tool that starts runs of an agent, described as `AgentChecker.as_shown` left it."""
    return ToolSpec(
        name=agent.tool_name,
        title=f"Run {agent.name}",
        description=agent.description,
        arguments=_arguments_of(agent),
        answer=None if agent.output_schema is None else partial(output_answer, agent.output_schema),
        handler=partial(run_agent, agent.name),
        hints=ToolHints(destructive=None, idempotent=None, open_world=True),
        in_sight=True,
    )


def _arguments_of(agent: AgentDefinition) -> Schema:
    """Return the arguments of the tool of an agent: those of a flow are its own instead of a prompt."""
    if agent.runner != "flow":
        return RUN_ARGUMENTS
    common = {name: each for name, each in RUN_ARGUMENTS["properties"].items() if name != "prompt"}
    if not isinstance(agent.input_schema, dict):  # the fault of its file refuses the run, whatever is passed
        return {**arguments([], **common), "additionalProperties": True}
    own = cast("dict[str, Any]", agent.input_schema)
    return arguments(own["required"], **own["properties"], **common)


async def run_agent(
    agent: str, context: ToolContext, call: Call, arguments: dict[str, Any] | None = None
) -> Answer:
    """Start a run of an agent and return its view, as every call that starts one does.

    Other arguments than those that every agent has are those of a flow.
    """
    own = {name: value for name, value in call.arguments.items() if name not in RUN_ARGUMENTS["properties"]}
    prompt = call.get("prompt", "")
    if not isinstance(prompt, str):  # of a flow that has a parameter of this name
        own["prompt"], prompt = prompt, ""
    order = StartOrder(
        agent=agent,
        prompt=prompt,
        arguments=arguments or own or None,
        inputs=call.get("inputs", []),
        cwd=call.get("cwd"),
        label=call.get("label"),
        client=call.client,
    )
    begin = partial(start, context.service, order, context.caller)
    return (await context.view_after_start(begin, call)).to_wire()


# -- The two tools instead of a tool for each agent, where there are many: `run_agent` and `list_agents`.


PAGE_AGENTS = 20
"""The most agents in one answer of `list_agents`."""
MAX_QUERY_CHARACTERS = 500
"""How much of a query counts."""
MAX_DESCRIPTION_CHARACTERS = 1_000
"""The most characters of an agent's description in an answer of `list_agents`."""


async def _run_agent(context: ToolContext, call: Call) -> Answer:
    visible = await asyncio.to_thread(context.agents.now)
    agent, arguments = visible.named(call.arguments.pop("agent")), call.arguments.pop("arguments", None)
    if arguments and isinstance(agent.input_schema, dict):
        take_as_meant(arguments, agent.input_schema)
    return await run_agent(agent.name, context, call, arguments)


RUN_AGENT = ToolSpec(
    name=RUN_AGENT_NAME,
    title="Run an agent",
    description="Start a run of an agent. list_agents finds the agent.",
    arguments=arguments(
        ["agent"],
        agent=text("Its name"),
        **RUN_ARGUMENTS["properties"],
        arguments={"type": "object", "description": "Of a flow, instead of prompt"},
    ),
    answer=partial(shown_schema, RunView),
    handler=_run_agent,
    hints=ToolHints(destructive=None, idempotent=None, open_world=True),
    in_sight=True,
)


async def _list_agents(context: ToolContext, call: Call) -> Answer:
    visible = await asyncio.to_thread(context.agents.now)
    agents = await asyncio.to_thread(visible.matching, call.get("query", "")[:MAX_QUERY_CHARACTERS])
    digest = digest_of([agent.name for agent in agents])
    page, next_cursor = page_of(agents, digest, PAGE_AGENTS, call.get("cursor"))
    instructions = "No agent has a word of the query: ask for others, or for all without a query."
    if agents:
        has_flow = any(agent.input_schema for agent in page)
        of_flow = "; arguments={...} instead of prompt for a flow" if has_flow else ""
        instructions = f"Next: run_agent(agent=..., prompt=...){of_flow}."
    shown = [
        {"agent": agent.name, "description": cut(_described(agent), MAX_DESCRIPTION_CHARACTERS)}
        for agent in page
    ]
    found: Answer = {"agents": shown, "total": len(agents), "instructions": instructions}
    return found if next_cursor is None else {**found, "nextCursor": next_cursor}


def _described(agent: AgentDefinition) -> str:
    own: Any = agent.input_schema  # of a flow, whose arguments no other tool shows here
    return f"{agent.description}\nArguments: {json.dumps(own['properties'])}" if own else agent.description


LIST_AGENTS = ToolSpec(
    name="list_agents",
    title="List agents",
    description="The agents that run_agent starts, by name; with a query the best matches first.",
    arguments=arguments(
        [],
        query=text("Words of a name or description"),
        cursor=text("From the last answer: the next page"),
    ),
    answer=lambda: answer(
        ["agents", "total", "instructions"],
        agents={
            "type": "array",
            "items": answer(["agent", "description"], agent=text(), description=text()),
        },
        total={"type": "integer"},
        nextCursor=text(),
        instructions=text(),
    ),
    handler=_list_agents,
    hints=_READ_ONLY,
    in_sight=True,
)

MANY_AGENTS = (RUN_AGENT, LIST_AGENTS)
MAX_NAMES_BYTES = 1_000
"""How much the names of agents may take in the description of `run_agent`."""


def many_agents(agents: Sequence[AgentDefinition]) -> tuple[ToolSpec, ...]:
    """Return the two tools, the first with as many names of agents as fit its description."""
    sizes = accumulate(len(agent.name.encode()) + 2 for agent in agents)
    names = [agent.name for agent, size in zip(agents, sizes, strict=True) if size <= MAX_NAMES_BYTES]
    more = f" and {len(agents) - len(names):,} more" if len(names) < len(agents) else ""
    listed = f"Start a run of an agent: {', '.join(names)}{more}. list_agents describes them."
    return replace(RUN_AGENT, description=listed), LIST_AGENTS
