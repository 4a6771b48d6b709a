"""Ending a run from outside of its worker: `stop_run`, `update_status`, and the payload that an end leaves.

Tested in `tests/end_to_end/test_stops.py`, `tests/faults/test_stop_races.py`, `tests/cli/test_stop.py`,
`tests/end_to_end/test_children.py`, `tests/end_to_end/test_child_programs.py` and
`tests/tools/test_payload.py`.
"""

import asyncio
import os
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, Literal

from subagent_server.process import marks
from subagent_server.run import processes, transitions
from subagent_server.run.agent_definition import AgentDefinition
from subagent_server.run.commands import misfit
from subagent_server.run.errors import BadArgument, CallerError
from subagent_server.run.journal import recorded_usage
from subagent_server.run.processes import now
from subagent_server.run.records import Failure, RunResult, storable
from subagent_server.run.states import (
    MAX_PAYLOAD_BYTES,
    Status,
    check_payload_size,
    check_reason,
    check_summary,
    cut,
    maybe_cut,
)
from subagent_server.verbs.access import USER, Caller
from subagent_server.verbs.inputs import masker_at_door
from subagent_server.verbs.reconcile import Observed, observe, signal_shim, stop_children, stop_run
from subagent_server.verbs.service import Service

# -- The verb `stop_run`: the status is written first, then the processes get their signals.


def stop(service: Service, run_id: str, reason: str | None = None, caller: Caller = USER) -> Observed:
    """End a run and its children. An ended run is returned unchanged.

    Its processes get TERM and, 10 s later, KILL; `live` is False only if they are gone.

    Raises:
        BadArgument: the reason is too long.
        InvalidRunId, UnknownRun, UnreadableMeta, NotAllowed, ForeignRoot, StorageFailed, LockTimeout.
    """
    check_reason(reason)
    service.store.paths.check_ours()
    observed = observe(service.store, run_id, caller)
    if observed.meta.status.is_terminal:
        return observed
    stop_run(service.store, run_id, reason and masker_at_door(service, run_id).text(reason))
    return observe(service.store, run_id)  # its processes may be gone, and the runs below it added their cost


def suspended_shim(service: Service, run_id: str) -> int | None:
    """Return the pid of the shim of a run if it is suspended: a stop takes effect when it resumes."""
    shim = marks.recorded_shim(service.store.paths.run(run_id))
    return shim.pid if shim is not None and processes.is_stopped(shim) else None


# -- The verb `update_status`: a program outside the built-in loop reports progress, or ends its run.


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
    """Record that a run is at work, is done, or failed. An end is final; a second end changes nothing.

    A long summary is cut in the state; the result of an end has all of it. `structured` is what
    `structured_result` has made of the payload.

    Raises:
        BadArgument: the summary or the payload is too large, or a payload comes with progress.
        IllegalTransition, InvalidRunId, UnknownRun, NotAllowed, StorageFailed.
    """
    check_summary(summary)
    _check_size(payload)
    if status == "running" and payload:
        raise BadArgument(
            "A payload comes with the end of a run (completed, failed): report progress by `summary` alone."
        )
    masker = masker_at_door(service, run_id)
    summary = masker.data(summary)
    store = service.store
    observed = observe(service.store, run_id, caller)
    short, text = maybe_cut(summary), summary or ""
    if status == "running":
        reported = transitions.ProgressReported(summary=short)
        return replace(observed, meta=store.update(run_id, reported, now()))
    usage = recorded_usage(store.paths.run(run_id))
    event: transitions.RunEvent
    if status == "completed":
        further = masker.data(structured or {}) | ({} if short is None else {"summary": short})
        result = RunResult(outcome=Status.COMPLETED, text=text, **further)
        event = transitions.Finished(summary=result.headline, usage=usage)
    else:
        failure = Failure(code="agent_error", message=cut(text) or "The agent reported that it failed.")
        result = RunResult(outcome=Status.FAILED, text=text, error=failure)
        event = transitions.RunFailed(failure=failure, usage=usage)
    kept = None if payload is None else masker.text(payload).encode("utf-8", "replace")
    store.update(run_id, event, now(), result=result, payload=kept)
    signal_shim(store, run_id)
    stop_children(store, run_id)
    return observe(store, run_id)  # its processes may be gone, and the runs below it added their cost


async def structured_result(
    service: Service, run_id: str, payload: str | None, caller: Caller
) -> dict[str, Any]:
    """Return the field `output` of a result, if the agent of the run promises one and the run has not ended.

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
        output = storable(payload or "")
    except (ValueError, RecursionError) as error:
        raise BadArgument(
            f"The payload is not JSON ({error}), and {expected}: give that as `payload`."
        ) from error
    problem = await misfit(schema, output)
    if problem is not None:
        raise BadArgument(f"The payload {problem}; {expected}: fix it, and call again.")
    return {"output": output}


def _check_size(payload: str | None) -> None:
    if payload is not None:
        check_payload_size(len(payload.encode("utf-8", "replace")))


def _promised(service: Service, run_id: str, caller: Caller) -> Any:
    """Return the output schema of a run that has not ended, or None."""
    if observe(service.store, run_id, caller).meta.status.is_terminal:
        return None
    try:
        return AgentDefinition.model_validate(service.store.read_request(run_id).agent).output_schema
    except ValueError:
        return None  # its request is damaged: the run can be ended all the same


# -- Open the payload of a run as it is stored, gzip-compressed, for a door that passes it on unchanged.


MAX_STORED_BYTES = MAX_PAYLOAD_BYTES + (1 << 20)
"""No payload that was stored here is larger: one that cannot be compressed grows by far less."""
_GZIP = b"\x1f\x8b"


class NoPayload(CallerError):
    """A run has no payload that could be passed on."""

    code = "no_payload"


@dataclass(frozen=True)
class StoredPayload:
    """An open file of `size` bytes, and its `ETag`. The caller closes it."""

    file: BinaryIO
    size: int
    tag: str


def open_payload(service: Service, run_id: str, caller: Caller = USER) -> StoredPayload:
    """Return the payload of a run, unread. The state of the run has to name it: a file alone does not count.

    Raises:
        NoPayload: there is none, or what is there was not stored as one.
        InvalidRunId, UnknownRun, UnreadableMeta, NotAllowed, StorageFailed, LockTimeout.
    """
    meta = observe(service.store, run_id, caller).meta
    if meta.payload is None:
        raise NoPayload(f"Run {run_id} ({meta.status.value}) has no payload: agent_status shows what it has.")
    try:
        descriptor = service.store.paths.run(run_id).payload.open()
    except OSError as error:
        raise _damaged(run_id, error.strerror or str(error)) from error
    file = os.fdopen(descriptor, "rb", buffering=0)
    facts = os.fstat(descriptor)
    if facts.st_size > MAX_STORED_BYTES or os.pread(descriptor, len(_GZIP), 0) != _GZIP:
        file.close()
        raise _damaged(run_id, "it was not stored as a payload")
    return StoredPayload(file, facts.st_size, f'"{run_id}-{facts.st_size:x}-{facts.st_mtime_ns:x}"')


def _damaged(run_id: str, why: str) -> NoPayload:
    return NoPayload(f"The payload of run {run_id} cannot be read ({why}): its summary is in agent_status.")
