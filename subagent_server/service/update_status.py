"""The verb `update_status`: a program says from outside the built-in loop how its run goes on, or ends it.

Tested in `tests/end_to_end/test_children.py` and `tests/end_to_end/test_child_programs.py`.
"""

from typing import Literal

from subagent_server.domain import events
from subagent_server.domain.limits import check_payload, check_summary
from subagent_server.domain.records import Failure, RunResult
from subagent_server.domain.states import Status
from subagent_server.host.clock import now
from subagent_server.service.access import USER, Caller
from subagent_server.service.context import Service
from subagent_server.service.ending import signal_shim, stop_children
from subagent_server.service.masking import masker_at_door
from subagent_server.service.open_run import open_run
from subagent_server.service.reconcile import Observed, observe

Reported = Literal["running", "completed", "failed"]


def update_status(
    service: Service,
    run_id: str,
    status: Reported,
    summary: str | None = None,
    payload: str | None = None,
    caller: Caller = USER,
) -> Observed:
    """Record that a run goes on, is done, or failed. An end is final; a second end changes nothing.

    Raises:
        BadArgument: the summary or the payload is too large.
        IllegalTransition, InvalidRunId, UnknownRun, NotAllowed, StorageFailed.
    """
    check_summary(summary)
    check_payload(_encoded(payload))
    masker = masker_at_door(service, run_id)
    summary, payload = masker.data(summary), masker.data(payload)
    store = service.store
    observed = open_run(service, run_id, caller)
    if status == "running":
        return Observed(store.update(run_id, events.ProgressReported(summary=summary), now()), observed.live)
    if status == "completed":
        result = RunResult(outcome=Status.COMPLETED, text=summary or "", summary=summary)
        store.update(
            run_id, events.Finished(summary=summary), now(), result=result, payload=_encoded(payload)
        )
    else:
        failure = Failure(code="agent_error", message=summary or "The agent reported that it failed.")
        result = RunResult(outcome=Status.FAILED, text=summary or "", error=failure)
        store.update(run_id, events.RunFailed(failure=failure), now(), result=result)
    signal_shim(store, run_id)
    stop_children(store, run_id)
    return observe(store, run_id)  # its processes may be gone, and the runs below it added their cost


def _encoded(payload: str | None) -> bytes | None:
    return None if payload is None else payload.encode("utf-8", "replace")
