"""The tools of a run itself: asking its parent, and saying how far it is."""

import asyncio
from typing import Any

from subagent_server.domain.limits import MAX_REPORT_CHARACTERS
from subagent_server.domain.question_schema import OPTIONS_SCHEMA, QUESTION_SCHEMA
from subagent_server.service.ask import ask_as_child
from subagent_server.service.tools.answers import ask_answer, run_answer
from subagent_server.service.tools.call import Call
from subagent_server.service.tools.context import ToolContext
from subagent_server.service.tools.schema import arguments, text, wait
from subagent_server.service.tools.spec import Answer, ToolSpec
from subagent_server.service.update_status import structured_result, update_status
from subagent_server.service.views import run_view

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
    answer: Answer = {"messageId": message_id, "instructions": view.instructions}
    if asked is not None and asked.answer is not None:
        answer["answer"] = asked.answer
    return answer


ASK_PARENT = ToolSpec(
    name="ask_parent",
    title="Ask the parent",
    description="For subagents: ask the parent one question and wait for the answer.",
    arguments=arguments(
        ["question"],
        runId=OWN_RUN_ID,
        question=QUESTION_SCHEMA | {"description": "With all that it takes to answer"},
        options=OPTIONS_SCHEMA | {"description": "Likely answers; any other may come"},
        waitSeconds=wait(45, "Seconds to wait for the answer"),
    ),
    answer=ask_answer,
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
        return run_view(context.service.store, observed, call.next_calls, context.caller).to_wire()

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
            "description": "running goes on, the others end it",
        },
        summary=text("How far it is, its result, or why it failed", maxLength=MAX_REPORT_CHARACTERS),
        payload=text("The full result; JSON if the agent has an output schema"),
    ),
    answer=run_answer,
    handler=_update_status,
    roles=frozenset({"child"}),
)
