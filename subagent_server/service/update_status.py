"""A run's word about itself from outside the built-in loop: `update_status` of a child."""

from typing import Literal

from subagent_server.domain import events
from subagent_server.domain.limits import check_payload, check_summary
from subagent_server.domain.records import Failure, RunResult
from subagent_server.domain.states import Status
from subagent_server.host.clock import now
from subagent_server.service.access import USER, Caller, check_open
from subagent_server.service.context import Service
from subagent_server.service.ending import stop_children, tell_shim
from subagent_server.service.masking import masker_at_door
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
    """Record that a run goes on, is done, or failed. An end is final; a second one changes nothing.

    Raises:
        BadArgument: the summary or the payload is too large.
        IllegalTransition, InvalidRunId, UnknownRun, NotAllowed, StorageFailed.
    """
    check_summary(summary)
    check_payload(_encoded(payload))
    masker = masker_at_door(service, run_id)
    summary, payload = masker.data(summary), masker.data(payload)
    store = service.store
    check_open(caller, store.read(run_id))
    observe(store, run_id)
    if status == "running":
        store.update(run_id, events.ProgressReported(summary=summary), now())
        return observe(store, run_id)
    if status == "completed":
        result = RunResult(outcome=Status.COMPLETED, text=summary or "", summary=summary)
        store.update(
            run_id, events.Finished(summary=summary), now(), result=result, payload=_encoded(payload)
        )
    else:
        failure = Failure(code="agent_error", message=summary or "The agent reported that it failed.")
        result = RunResult(outcome=Status.FAILED, text=summary or "", error=failure)
        store.update(run_id, events.RunFailed(failure=failure), now(), result=result)
    tell_shim(store, run_id)
    stop_children(store, run_id)
    return observe(store, run_id)


def _encoded(payload: str | None) -> bytes | None:
    return None if payload is None else payload.encode("utf-8", "replace")
