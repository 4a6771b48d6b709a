"""Stopping runs: the status is written first, then the processes are told."""

from subagent_server.domain.limits import check_reason
from subagent_server.service.access import USER, Caller, check_open
from subagent_server.service.context import Service
from subagent_server.service.ending import stop_run
from subagent_server.service.masking import masker_at_door
from subagent_server.service.reconcile import Observed, observe


def stop(service: Service, run_id: str, reason: str | None = None, caller: Caller = USER) -> Observed:
    """End a run and those it started. A run that has ended is returned as it is.

    Its processes get TERM and, 10 s later, KILL; `live` says truthfully whether they are gone.

    Raises:
        BadArgument: the reason is too long.
        InvalidRunId, UnknownRun, UnreadableMeta, NotAllowed, ForeignRoot, StorageFailed, LockTimeout.
    """
    check_reason(reason)
    store = service.store
    store.paths.check_ours()
    check_open(caller, store.read(run_id))
    observed = observe(store, run_id)
    if observed.meta.status.is_terminal:
        return observed
    stop_run(store, run_id, reason and masker_at_door(service, run_id).text(reason))
    return observe(store, run_id)
