"""From the call of a tool to its handler: the tools of a run itself, those of the lifecycle, and the table.

`ToolDispatcher` is what the doors for models use; `parent_tools.py` has the tools of a parent.
"""

import asyncio
import json
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate, chain
from typing import Any

from subagent_server.run.errors import BadArgument, HostError, NoRoom, choices
from subagent_server.run.records import RunMeta
from subagent_server.run.schemas import shown_schema
from subagent_server.run.stderr import lack_of_room, of_the_system
from subagent_server.settings import DEFAULT_TOOLS_BUDGET, Role
from subagent_server.tools.parent_tools import (
    CHECK_STATUS,
    CONTINUE_RUN,
    GET_LOGS,
    LIST_RUNS,
    MANY_AGENTS,
    MERGE_RUN,
    REPLY_SUBAGENT,
    STOP_RUN,
    WAIT_FOR_RUNS,
    many_agents,
    run_tool,
)
from subagent_server.tools.spec import (
    LIST,
    TEXTS,
    AgentsOfCaller,
    Answer,
    Call,
    Schema,
    ToolContext,
    ToolHints,
    ToolRole,
    ToolSpec,
    VisibleAgents,
    answer,
    arguments,
    check_arguments,
    digest_of,
    text,
    wait,
)
from subagent_server.verbs.access import ENDED, MAX_SHOWN, Caller
from subagent_server.verbs.contract_agent import AgentStatus, agent_statuses, contract_agent, status_of
from subagent_server.verbs.end_run import stop, structured_result, update_status
from subagent_server.verbs.questions import ask_as_child
from subagent_server.verbs.service import Service
from subagent_server.verbs.start import StartOrder, start
from subagent_server.verbs.tree_limits import agents_of
from subagent_server.verbs.views import RunView
from subagent_server.verbs.wait_for_runs import Changes

# -- The tools of a run itself: asking its parent, and saying how far it is.


OWN_RUN_ID = text("Your own run; not needed inside it")


async def _ask(context: ToolContext, call: Call) -> Answer:
    run_id, question, options = context.own_run_id(call), call.arguments["question"], call.get("options")
    observed = await asyncio.to_thread(
        ask_as_child, context.service, run_id, question, options, context.caller
    )
    message_id = observed.meta.messages[-1].message_id
    context.asked.add((run_id, message_id))
    view = await context.view_after_answer(observed, message_id, call, 45)
    asked = next((m for m in view.messages or [] if m.message_id == message_id), None)
    found: Answer = {"messageId": message_id, "instructions": view.instructions}
    if asked is not None and asked.answer is not None:
        found["answer"] = asked.answer
    return found


ASK_PARENT = ToolSpec(
    name="ask_parent",
    title="Ask the parent",
    description="For subagents: ask the parent one question and wait for the answer.",
    arguments=arguments(
        ["question"],
        runId=OWN_RUN_ID,
        question=text("With all that it takes to answer"),
        options=TEXTS | {"description": "Likely answers; any other may come"},
        waitSeconds=wait(45, "Seconds to wait for the answer"),
    ),
    answer=lambda: answer(["messageId"], messageId=text(), answer=text(), instructions=text()),
    handler=_ask,
    roles=frozenset({"child"}),
    in_sight=True,
)


async def _update_status(context: ToolContext, call: Call) -> Answer:
    run_id = context.own_run_id(call)
    status, summary, payload = call.arguments["status"], call.get("summary"), call.get("payload")
    output: dict[str, Any] = {}
    if status == "completed":
        output = await structured_result(context.service, run_id, payload, context.caller)

    def updated() -> Answer:
        observed = update_status(context.service, run_id, status, summary, payload, context.caller, output)
        return context.view(observed, call).to_wire()

    return await asyncio.to_thread(updated)


UPDATE_STATUS = ToolSpec(
    name="update_status",
    title="Report status",
    description=("For subagents: say how far the work is, or end it as completed or failed with a summary."),
    arguments=arguments(
        ["status"],
        runId=OWN_RUN_ID,
        status={
            "enum": ["running", "completed", "failed"],
            "description": "running continues, the others end it",
        },
        summary=text("How far it is, its result, or why it failed"),
        payload=text("The full result; JSON if the agent has an output schema"),
    ),
    answer=partial(shown_schema, RunView),
    handler=_update_status,
    roles=frozenset({"child"}),
)


# -- The tools of the lifecycle: starting an agent by a contract, looking at it, completing it, stopping it.
#
# Names, arguments and answers are those of the seed `agent_mcp_server.txt`; the verbs are those of all
# tools.


_BOTH: frozenset[ToolRole] = frozenset({"parent", "child"})
_AGENT_ID = text("Id of the agent, as agent_start gave it")
_STARTED = ("agent_id", "status", "started_at", "stopped_at", "error")
_ENDED = ("status", "started_at", "completed_at", "stopped_at", "error")


async def _start(context: ToolContext, call: Call) -> Answer:
    agent = contract_agent(context.service.settings.contract_model)
    order = StartOrder(agent.name, call.arguments["contract"], client=call.client, contract=agent)
    meta = await context.started(partial(start, context.service, order, context.caller))
    return _part(meta, _STARTED)


async def _status(context: ToolContext, call: Call) -> Answer:
    found = await asyncio.to_thread(
        agent_statuses, context.service, call.arguments["agent_ids"], context.caller, call.http_url
    )
    for _, meta in found:
        if meta is not None and context.shown.revision(meta.run_id) < ENDED:
            await context.note(meta, call)
    return {LIST: [status.to_wire() for status, _ in found]}


async def _complete(context: ToolContext, call: Call) -> Answer:
    agent_id, summary, payload = call.arguments["agent_id"], call.arguments["summary"], call.get("payload")
    output = await structured_result(context.service, agent_id, payload, context.caller)
    observed = await asyncio.to_thread(
        update_status, context.service, agent_id, "completed", summary, payload, context.caller, output
    )
    await context.note(observed.meta, call)
    return _part(observed.meta, _ENDED)


async def _stop(context: ToolContext, call: Call) -> Answer:
    agent_id = call.arguments["agent_id"]
    observed = await asyncio.to_thread(stop, context.service, agent_id, None, context.caller)
    await context.note(observed.meta, call)
    return _part(observed.meta, _ENDED)


def _part(meta: RunMeta, fields: tuple[str, ...]) -> Answer:
    wire = status_of(meta).to_wire()
    return {field: wire[field] for field in fields if field in wire}


def _answer_with(fields: tuple[str, ...]) -> Schema:
    properties = shown_schema(AgentStatus)["properties"]
    return answer(["status", "started_at"], **{field: properties[field] for field in fields})


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
            contract=text("The whole task: the agent sees nothing else of your conversation"),
        ),
        answer=partial(_answer_with, _STARTED),
        handler=_start,
        hints=ToolHints(destructive=None, idempotent=None, open_world=True),
        in_sight=True,
    ),
    ToolSpec(
        name="agent_status",
        title="Look at agents",
        description="State of agents: running, stopped or completed, with preview, summary or error.",
        arguments=arguments(
            ["agent_ids"],
            agent_ids=TEXTS | {"description": "Ids of the agents", "maxItems": MAX_SHOWN},
        ),
        answer=lambda: answer([LIST], **{LIST: {"type": "array", "items": shown_schema(AgentStatus)}}),
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
            summary=text("The result in short"),
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
        hints=ToolHints(destructive=True, idempotent=True),
    ),
)


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


@dataclass(frozen=True)
class ToolTable:
    """The tools of a caller while these agents are visible, and the generic tools."""

    visible: VisibleAgents
    tools: tuple[ToolSpec, ...]

    @cached_property
    def digest(self) -> str:
        """A short text that differs as soon as a client would see another table."""
        return digest_of([_as_seen(tool) for tool in self.tools])


def _as_seen(tool: ToolSpec) -> str:
    answer_schema = None if tool.answer is None else tool.answer()
    return json.dumps(
        [tool.name, tool.title, tool.description, tool.in_sight, tool.shown_arguments, answer_schema]
    )


def table_of(visible: VisibleAgents, generic: Sequence[ToolSpec], budget: int) -> ToolTable:
    """Return the table: a tool for each agent, or two for all if a model would read over `budget` bytes.

    A table of several pages begins with the tools that a client needs if it reads one page: those two, which
    reach every agent, and the generic ones.
    """
    agents = visible.agents
    if agents and not _fit(chain(generic, map(run_tool, agents)), budget):  # checking many takes seconds
        return ToolTable(visible, (*many_agents(agents), *generic))
    starting = tuple(map(run_tool, visible.shown))  # longer, if a description begins with a refusal
    if agents and not _fit((*generic, *starting), budget):
        return ToolTable(visible, (*many_agents(agents), *generic))
    if not _fit((*generic, *starting), DEFAULT_TOOLS_BUDGET):  # a client that hides tools may hide these
        starting = tuple(replace(tool, in_sight=False) for tool in starting)
    if len(starting) + len(generic) > PAGE_TOOLS:
        return ToolTable(visible, (*many_agents(agents), *generic, *starting))
    return ToolTable(visible, (*starting, *generic))


def _fit(tools: Iterable[ToolSpec], budget: int) -> bool:
    """Whether a model reads at most so many bytes of these tools. Makes no more of them than it has to."""
    return all(size <= budget for size in accumulate(tool.model_bytes for tool in tools))


class ToolTables:
    """The tables of callers with the same tools: one for all that have the same generic tools."""

    def __init__(self, service: Service, caller: Caller) -> None:
        self.agents = AgentsOfCaller(service, caller)
        self._budget = service.settings.tools_budget
        self._tables: dict[tuple[str, ...], ToolTable] = {}
        self._making = threading.Lock()

    def now(self, generic: Sequence[ToolSpec]) -> ToolTable:
        """Return the tools as they are now: the same table as long as no agent has changed.

        Looks at the files: call it off the event loop. A caller that asks while they are read waits for that.
        """
        names = tuple(tool.name for tool in generic)
        with self._making:
            visible = self.agents.now()
            table = self._tables.get(names)
            if table is None or table.visible is not visible:
                self._tables[names] = table = table_of(visible, generic, self._budget)
        return table


def tools_of(service: Service, role: Role, caller: Caller) -> tuple[ToolSpec, ...]:
    """Return the generic tools of a role, and those of the lifecycle if they are listed.

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


def _is_for_children(tool: ToolSpec) -> bool:
    return "child" in tool.roles


# -- The dispatcher of tool calls: finds the tool, checks the arguments, calls its handler.
#
# Both doors for models use the dispatcher: the MCP server, and the loop of an agent that may start others.


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
        self._context = ToolContext(service, changes, caller, self._tables.agents)

    @property
    def waiting(self) -> int:
        """How many calls wait for runs: a server that leaves lets all others finish."""
        return self._context.waiting

    def table(self) -> ToolTable:
        """Return the tools as they are now: the same table as long as no agent has changed.

        Looks at the files: call it off the event loop.
        """
        return self._tables.now(self.generic)

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
            if (lack := lack_of_room(error)) is not None:
                raise NoRoom(f"{name[:80]} could not be carried out. {lack}") from error
            if isinstance(error, OSError) and error.errno is not None:
                raise HostError(f"{name[:80]} could not be carried out. {of_the_system(error)}") from error
            raise

    def _starting_tool(self, name: str) -> ToolSpec:
        """Return the tool that starts an agent, listed or not: the number of agents may just have changed."""
        table = self.table()
        if (agent := table.visible.by_tool.get(name)) is not None:
            return run_tool(agent)
        for tool in MANY_AGENTS:
            if tool.name == name and table.visible.agents:
                return tool
        raise BadArgument(
            f"There is no tool {name[:80]!r}: {choices('tools', name, [tool.name for tool in table.tools])}."
        )
