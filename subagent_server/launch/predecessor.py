"""Wait for the run to be continued: no worker begins before the last process of the old run is gone.

Standard library only: the shim imports this module.
"""

import json
import time
from collections.abc import Callable

from subagent_server.host import locks
from subagent_server.launch.aftermath import run_verb
from subagent_server.launch.program import WorkerProgram
from subagent_server.launch.slots import signal_when_free
from subagent_server.store.paths import RECORD_BYTES, RunPaths

FIRST_LOOK_SECONDS = 6.0
"""When the old run is observed at first: its shim may not have noticed that the run is over."""
LONGEST_PAUSE_SECONDS = 30.0


def is_gone(run: RunPaths) -> bool:
    """Whether the record says that no process of the run is left, or the run was removed."""
    try:
        record = json.loads(run.exit.read(RECORD_BYTES))
    except FileNotFoundError:
        return not run.directory.exists()
    except (OSError, ValueError):
        return False
    return isinstance(record, dict) and bool(record.get("treeGone"))


def wait_until_gone(run: RunPaths, nap: Callable[[float], bool], program: WorkerProgram) -> bool:
    """Return True once no process of `run` is left, or False if the waiting run is over.

    `nap` sleeps so many seconds, or until something happens, and returns whether to go on. A shim still
    holding the run is waited for. Without a shim, the worker's `program` reconciles the run as every reader
    does: `program` kills the remaining processes and records their end. This is repeated until they are gone.
    """
    if is_gone(run):
        return True
    signal_when_free(run.live_lock)
    held, pause = True, 1.0
    due = time.monotonic() + FIRST_LOOK_SECONDS
    while not is_gone(run):
        was_held, held = held, locks.is_held(run.live_lock)
        if (was_held and not held) or time.monotonic() >= due:
            run_verb(run, program, "--observe")
            due = time.monotonic() + pause
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        elif not nap(max(0.05, due - time.monotonic())):
            return False
    return True
