"""The consequences of every end of a run: its shim gets a signal, and the runs it started end too."""

import signal
from contextlib import suppress

from subagent_server.domain import events
from subagent_server.domain.errors import SubagentError
from subagent_server.domain.records import RunMeta
from subagent_server.host import processes
from subagent_server.host.clock import now
from subagent_server.launch import marks
from subagent_server.service.tree_usage import record_tree_usage
from subagent_server.store.logs import recorded_usage
from subagent_server.store.runs import RunStore


def stop_run(store: RunStore, run_id: str, reason: str | None) -> RunMeta:
    """Write the end of a run, signal its shim, and stop the runs it started."""
    usage = recorded_usage(store.paths.run(run_id))
    meta = store.update(run_id, events.StopRequested(reason=reason, usage=usage), now())
    signal_shim(store, run_id)
    stop_children(store, run_id)
    with suppress(SubagentError):  # its shim settles it again once all of it is gone
        record_tree_usage(store, run_id)
    return meta


def signal_shim(store: RunStore, run_id: str) -> None:
    """Send TERM to the shim of an ended run. A shim not recorded yet reads the status itself."""
    shim = marks.recorded_shim(store.paths.run(run_id))
    if shim is not None:
        processes.send_signal(shim, signal.SIGTERM)


def stop_children(store: RunStore, run_id: str) -> None:
    """Stop all live runs that this run started: however a run ends, its children end too."""
    for child in store.children_of(run_id):
        try:
            if not store.read(child).status.is_terminal:
                stop_run(store, child, f"run {run_id}, which started it, has ended")
        except SubagentError:
            continue  # unreadable or never a run: the doctor lists it, and the others are still stopped
