"""Stopping runs: the status is written first, then the processes are told."""

from subagent_server.service.access import USER, Caller, check_open
from subagent_server.service.context import Service
from subagent_server.service.ending import stop_run
from subagent_server.service.reconcile import Observed, observe


def stop(service: Service, run_id: str, reason: str | None = None, caller: Caller = USER) -> Observed:
    """End a run and those it started. A run that has ended is returned as it is.

    Its processes get TERM and, 10 s later, KILL; `live` says truthfully whether they are gone.

    Raises:
        InvalidRunId, UnknownRun, UnreadableMeta, NotAllowed, ForeignRoot, StorageFailed, LockTimeout.
    """
    store = service.store
    store.paths.check_ours()
    check_open(caller, store.read(run_id))
    observed = observe(store, run_id)
    if observed.meta.status.is_terminal:
        return observed
    stop_run(store, run_id, reason)
    return observe(store, run_id)
