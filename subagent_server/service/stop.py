"""Ending runs. The status is written first, then the processes are told."""

import signal

from subagent_server.domain import events
from subagent_server.domain.errors import SubagentError
from subagent_server.domain.records import RunMeta
from subagent_server.host import processes
from subagent_server.host.clock import now
from subagent_server.service.access import USER, Caller, check_open
from subagent_server.service.context import Service
from subagent_server.service.reconcile import Observed, observe, read_shim
from subagent_server.store.logs import recorded_usage
from subagent_server.store.runs import RunStore


def stop(service: Service, run_id: str, reason: str | None = None, caller: Caller = USER) -> Observed:
    """End a run and those it started. A run that has ended is returned as it is.

    Its processes get TERM and, 10 s later, KILL; `live` says truthfully whether they are gone.

    Raises:
        InvalidRunId, UnknownRun, UnreadableMeta, NotAllowed, StorageFailed, LockTimeout.
    """
    store = service.store
    check_open(caller, store.read(run_id))
    stop_run(store, run_id, reason)
    return observe(store, run_id)


def stop_run(store: RunStore, run_id: str, reason: str | None) -> RunMeta:
    """Write the end of a run, tell its keeper, and stop the runs it started."""
    usage = recorded_usage(store.paths.run(run_id))
    meta = store.update(run_id, events.StopRequested(reason=reason, usage=usage), now())
    tell_keeper(store, run_id)
    stop_children(store, run_id)
    return meta


def tell_keeper(store: RunStore, run_id: str) -> None:
    """Send TERM to the shim of a run that has ended. One that is not recorded yet reads the status itself."""
    shim = processes.Identity.from_json(read_shim(store.paths.run(run_id)).get("shim"))
    if shim is not None:
        processes.send_signal(shim, signal.SIGTERM)


def stop_children(store: RunStore, run_id: str) -> None:
    """Stop the runs that this one started and that have not ended: however a run ends, they end too."""
    for child in store.children_of(run_id):
        try:
            if not store.read(child).status.is_terminal:
                stop_run(store, child, f"run {run_id}, which started it, has ended")
        except SubagentError:
            continue  # unreadable or never a run: the doctor lists it, and the others are still stopped
