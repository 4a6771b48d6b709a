"""The verb `update_status`: a program says from outside the built-in loop how its run goes on, or ends it.

Tested in `tests/end_to_end/test_children.py` and `tests/end_to_end/test_child_programs.py`.
"""

import asyncio
import json
from typing import Any, Literal

from subagent_server.domain import events
from subagent_server.domain.definitions import AgentDefinition
from subagent_server.domain.errors import BadArgument
from subagent_server.domain.limits import check_payload_size, check_summary, cut, maybe_cut
from subagent_server.domain.records import Failure, RunResult
from subagent_server.domain.states import Status
from subagent_server.host.clock import now
from subagent_server.host.schema_check import misfit
from subagent_server.service.access import USER, Caller
from subagent_server.service.context import Service
from subagent_server.service.ending import signal_shim, stop_children
from subagent_server.service.masking import masker_at_door
from subagent_server.service.open_run import open_run
from subagent_server.service.reconcile import Observed, observe
from subagent_server.store.logs import recorded_usage

Reported = Literal["running", "completed", "failed"]


def update_status(
    service: Service,
    run_id: str,
    status: Reported,
    summary: str | None = None,
    payload: str | None = None,
    caller: Caller = USER,
    structured: dict[str, Any] | None = None,
) -> Observed:
    """Record that a run goes on, is done, or failed. An end is final; a second end changes nothing.

    A long summary is cut in the state; the result of an end has all of it. `structured` is what
    `structured_result` has made of the payload.

    Raises:
        BadArgument: the summary or the payload is too large.
        IllegalTransition, InvalidRunId, UnknownRun, NotAllowed, StorageFailed.
    """
    check_summary(summary)
    _check_size(payload)
    masker = masker_at_door(service, run_id)
    summary = masker.data(summary)
    store = service.store
    observed = open_run(service, run_id, caller)
    short, text = maybe_cut(summary), summary or ""
    if status == "running":
        return Observed(store.update(run_id, events.ProgressReported(summary=short), now()), observed.live)
    usage = recorded_usage(store.paths.run(run_id))
    if status == "completed":
        output = masker.data(structured or {})
        result = RunResult(outcome=Status.COMPLETED, text=text, summary=short, **output)
        finished = events.Finished(summary=short, usage=usage)
        kept = None if payload is None else masker.text(payload).encode("utf-8", "replace")
        store.update(run_id, finished, now(), result=result, payload=kept)
    else:
        failure = Failure(code="agent_error", message=cut(text) or "The agent reported that it failed.")
        result = RunResult(outcome=Status.FAILED, text=text, error=failure)
        store.update(run_id, events.RunFailed(failure=failure, usage=usage), now(), result=result)
    signal_shim(store, run_id)
    stop_children(store, run_id)
    return observe(store, run_id)  # its processes may be gone, and the runs below it added their cost


async def structured_result(
    service: Service, run_id: str, payload: str | None, caller: Caller = USER
) -> dict[str, Any]:
    """Return the field `output` of a result, if the agent of the run promises one and the run goes on.

    A run may not complete without the output that its agent promises, by whichever door it ends.

    Raises:
        BadArgument: the payload is not JSON that fits the schema of the agent.
        InvalidRunId, UnknownRun, UnreadableMeta, NotAllowed.
    """
    _check_size(payload)
    schema = await asyncio.to_thread(_promised, service, run_id, caller)
    if schema is None:
        return {}
    expected = f"the agent of run {run_id} promises a result of its outputSchema"
    try:
        output = json.loads(payload or "")
    except (ValueError, RecursionError) as error:
        raise BadArgument(f"The payload is not JSON, and {expected}: give that as `payload`.") from error
    problem = await misfit(schema, output)
    if problem is not None:
        raise BadArgument(f"The payload {problem}; {expected}: mend it, and call again.")
    return {"output": output}


def _check_size(payload: str | None) -> None:
    if payload is not None:
        check_payload_size(len(payload.encode("utf-8", "replace")))


def _promised(service: Service, run_id: str, caller: Caller) -> Any:
    """Return the output schema of a run that has not ended, or None."""
    if open_run(service, run_id, caller).meta.status.is_terminal:
        return None
    try:
        return AgentDefinition.model_validate(service.store.read_request(run_id).agent).output_schema
    except ValueError:
        return None  # its request is damaged: the run can be ended all the same
