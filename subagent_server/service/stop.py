"""The verb `stop_run`: the status is written first, then the processes get their signals.

Tested in `tests/end_to_end/test_stops.py`, `tests/faults/test_stop_races.py` and `tests/cli/test_stop.py`.
"""

from subagent_server.domain.limits import check_reason
from subagent_server.host import processes
from subagent_server.launch import marks
from subagent_server.service.access import USER, Caller
from subagent_server.service.context import Service
from subagent_server.service.ending import stop_run
from subagent_server.service.masking import masker_at_door
from subagent_server.service.open_run import open_run
from subagent_server.service.reconcile import Observed, observe


def stop(service: Service, run_id: str, reason: str | None = None, caller: Caller = USER) -> Observed:
    """End a run and its children. An ended run is returned unchanged.

    Its processes get TERM and, 10 s later, KILL; `live` says truthfully whether they are gone.

    Raises:
        BadArgument: the reason is too long.
        InvalidRunId, UnknownRun, UnreadableMeta, NotAllowed, ForeignRoot, StorageFailed, LockTimeout.
    """
    check_reason(reason)
    service.store.paths.check_ours()
    observed = open_run(service, run_id, caller)
    if observed.meta.status.is_terminal:
        return observed
    stop_run(service.store, run_id, reason and masker_at_door(service, run_id).text(reason))
    return observe(service.store, run_id)  # its processes may be gone, and the runs below it added their cost


def suspended_shim(service: Service, run_id: str) -> int | None:
    """Return the pid of the shim of a run if that process is suspended: until it goes on, it ends nothing."""
    shim = marks.recorded_shim(service.store.paths.run(run_id))
    return shim.pid if shim is not None and processes.is_stopped(shim) else None
