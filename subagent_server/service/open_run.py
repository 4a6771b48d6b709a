"""Opening a run for a caller: a single read of its state, the check of the caller, then reconciliation."""

from subagent_server.service.access import USER, Caller
from subagent_server.service.context import Service
from subagent_server.service.reconcile import Observed, observe


def open_run(service: Service, run_id: str, caller: Caller = USER) -> Observed:
    """Return a run, reconciled, if it is open to the caller.

    Raises:
        InvalidRunId, UnknownRun, UnreadableMeta, NotAllowed, StorageFailed, LockTimeout.
    """
    return observe(service.store, run_id, caller)
