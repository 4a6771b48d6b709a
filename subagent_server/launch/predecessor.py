"""The run that another one carries on: no second worker begins before the last process of the first is gone.

Standard library only: the shim imports this module.
"""

import json
import time
from collections.abc import Callable

from subagent_server.host import locks
from subagent_server.launch.aftermath import told_by_worker
from subagent_server.launch.program import Program
from subagent_server.launch.slots import signal_when_free
from subagent_server.store.paths import RECORD_BYTES, RunPaths

FIRST_LOOK_SECONDS = 6.0
"""When the keeper of the old run is looked after: it may not have heard that its run is over."""
LONGEST_PAUSE_SECONDS = 30.0


def is_gone(run: RunPaths) -> bool:
    """Whether it is on record that no process of the run is left. Of one that was removed there is none."""
    try:
        record = json.loads(run.exit.read(RECORD_BYTES))
    except FileNotFoundError:
        return not run.directory.exists()
    except (OSError, ValueError):
        return False
    return isinstance(record, dict) and bool(record.get("treeGone"))


def wait_until_gone(run: RunPaths, nap: Callable[[float], bool], program: Program) -> bool:
    """Return True once nothing of `run` is left, or False once nobody wants to wait any more.

    `nap` sleeps so many seconds, or until something happens, and says whether to go on. A keeper that holds
    the run is waited for. Where there is none, the worker's `program` looks at the run as every reader does:
    it kills what is left and records that it is gone. It is tried until that is so.
    """
    if is_gone(run):
        return True
    signal_when_free(run.live_lock)
    kept, pause = True, 1.0
    due = time.monotonic() + FIRST_LOOK_SECONDS
    while not is_gone(run):
        was_kept, kept = kept, locks.is_held(run.live_lock)
        if (was_kept and not kept) or time.monotonic() >= due:
            told_by_worker(run, program, "--settle")
            due = time.monotonic() + pause
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        elif not nap(max(0.05, due - time.monotonic())):
            return False
    return True
