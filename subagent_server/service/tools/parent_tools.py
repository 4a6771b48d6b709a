"""The tools of a parent: looking at runs, waiting for them, answering, ending and continuing them."""

import asyncio
from functools import partial

from subagent_server.domain.limits import MAX_ANSWER_CHARACTERS
from subagent_server.domain.states import Status
from subagent_server.service.changes import Wait
from subagent_server.service.continue_run import ContinueOrder, continue_run
from subagent_server.service.get_logs import LogPage, get_logs
from subagent_server.service.list_runs import list_runs
from subagent_server.service.merge_run import merge_run
from subagent_server.service.open_run import open_run
from subagent_server.service.reply import masked_note, reply
from subagent_server.service.shown_runs import MAX_SHOWN
from subagent_server.service.stop import stop
from subagent_server.service.tools.answers import record_answer, reply_answer, rows_answer, run_answer
from subagent_server.service.tools.call import Call
from subagent_server.service.tools.context import ToolContext
from subagent_server.service.tools.schema import RUN_ID, SUMMARY, TEXTS, arguments, bounded, text, wait
from subagent_server.service.tools.spec import Answer, ToolHints, ToolRole, ToolSpec
from subagent_server.service.views import RunView, run_view
from subagent_server.service.wait_for_runs import WaitResult, Watchlist
from subagent_server.worktrees.merging import MERGE_WAYS

_PARENT: frozenset[ToolRole] = frozenset({"parent"})
_READ_ONLY = ToolHints(read_only=True, idempotent=True)


async def _check_status(context: ToolContext, call: Call) -> Answer:
    named = call.get("messageId")
    observed = await asyncio.to_thread(open_run, context.service, call.arguments["runId"], context.caller)
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
    answer=run_answer,
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
    async with call.waiting_for(watch.run_ids):
        within = Wait(call.wait_seconds(45), frozenset(watch.run_ids), call.progress)
        found: WaitResult | None = await context.waited(lambda: watch.look(wait_for), within)
    result = found if found is not None else await asyncio.to_thread(watch.now)
    for run_id in [*result.working, *(result.later or [])]:
        context.shown.note(run_id)
    for view in result.runs:
        await context.note(view)
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
    answer=partial(record_answer, WaitResult),
    handler=_wait_for_runs,
    roles=_PARENT,
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
        limit=bounded("integer", 1, 500, 20, "How many"),
        all={"type": "boolean", "description": "Also other parents' runs"},
    ),
    answer=rows_answer,
    handler=_list_runs,
    roles=_PARENT,
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
    return page.model_dump(mode="json", exclude_none=True)


GET_LOGS = ToolSpec(
    name="get_logs",
    title="Read a run's log",
    description="A page of a run's log (last lines first), events, whole result or payload.",
    arguments=arguments(
        ["runId"],
        runId=RUN_ID,
        stream={"enum": ["log", "events", "result", "payload"], "description": "Default log"},
        cursor=text("From the last page"),
        lines=bounded("integer", 1, 1000, 50, "Of log or events"),
    ),
    answer=partial(record_answer, LogPage),
    handler=_get_logs,
    roles=_PARENT,
    hints=_READ_ONLY,
)


async def _reply(context: ToolContext, call: Call) -> Answer:
    given, message_id = call.arguments, call.get("messageId")
    observed = await asyncio.to_thread(
        reply, context.service, given["runId"], given["answer"], message_id, caller=context.caller
    )
    view = await context.view_after_wait(observed, call)
    message = f"The answer is recorded{masked_note(observed.meta, given['answer'])}."
    return {"success": True, "message": message, "updatedMetadata": view.to_wire()}


REPLY_SUBAGENT = ToolSpec(
    name="reply_subagent",
    title="Answer a subagent",
    description="Answer a run's question.",
    arguments=arguments(
        ["runId", "answer"],
        runId=RUN_ID,
        messageId=text("If several are open"),
        answer=text("What it is to know", maxLength=MAX_ANSWER_CHARACTERS),
        waitSeconds=wait(0),
    ),
    answer=reply_answer,
    handler=_reply,
    roles=_PARENT,
    in_sight=True,
)


async def _stop(context: ToolContext, call: Call) -> Answer:
    def stopped() -> RunView:
        observed = stop(context.service, call.arguments["runId"], call.get("reason"), context.caller)
        return run_view(context.service.store, observed, call.next_calls, context.caller)

    view = await asyncio.to_thread(stopped)
    await context.note(view)
    return view.to_wire()


STOP_RUN = ToolSpec(
    name="stop_run",
    title="Stop a run",
    description="End a run and all it started. An ended run stays as it is.",
    arguments=arguments(["runId"], runId=RUN_ID, reason=SUMMARY | {"description": "Why"}),
    answer=run_answer,
    handler=_stop,
    roles=_PARENT,
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
    meta = await asyncio.to_thread(continue_run, context.service, order, context.caller)
    return (await context.view_after_start(meta.run_id, call)).to_wire()


CONTINUE_RUN = ToolSpec(
    name="continue_run",
    title="Continue a run",
    description="Go on with an ended run and its whole conversation, as a new run.",
    arguments=arguments(
        ["runId"],
        runId=RUN_ID,
        prompt=text("Next task; else it goes on where it was cut"),
        inputs=TEXTS | {"description": "More files"},
        storedAgent={"type": "boolean", "description": "The agent as the run had it"},
        waitSeconds=wait(0),
    ),
    answer=run_answer,
    handler=_continue,
    roles=_PARENT,
)


async def _merge(context: ToolContext, call: Call) -> Answer:
    def merged() -> Answer:
        run_id = call.arguments["runId"]
        done = merge_run(context.service, run_id, call.get("how", "merge"), context.caller)
        observed = open_run(context.service, done.run_id, context.caller)
        view = run_view(context.service.store, observed, call.next_calls, context.caller)
        return {"success": True, "message": done.sentence, "updatedMetadata": view.to_wire()}

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
    answer=reply_answer,
    handler=_merge,
    roles=_PARENT,
)
