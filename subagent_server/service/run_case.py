"""Decide in which case a run is, when its record is compared with its processes.

The order keeps a finished run from being called lost: its result counts before its processes do.
`reconcile.py` acts on each case; `list_runs.py` only asks whether any action is needed.
Standard library only.
"""

from enum import Enum

from subagent_server.domain.states import Status
from subagent_server.domain.versions import SCHEMA_VERSION
from subagent_server.host import locks, processes
from subagent_server.service.shim_record import read_exit
from subagent_server.store.facts import tree_is_gone
from subagent_server.store.paths import RunPaths


class RunCase(Enum):
    """The findings of a reader. The first case that fits is the case of the run."""

    FOREIGN = 1
    """The root is not ours: the state is all that is known."""
    NEWER = 2
    """A newer version wrote the state: it is read and never changed."""
    ELSEWHERE = 3
    """Another host started the run: nobody can look at its processes here."""
    ENDED = 4
    """The state is terminal: only the run's processes are in question."""
    RESULT_LEFT = 5
    """There is a result that the state lacks: it is applied before any process is looked at."""
    LIVES = 6
    """The shim holds the lock of the run, and has not recorded the end of the worker."""
    DEAD = 7
    """The end of the worker is recorded, or nobody holds the run."""


def is_here(host: str | None) -> bool:
    """Whether the processes of a run launched on `host` would be on this host."""
    return host is None or host == processes.host_name()


def case_of(run: RunPaths, status: Status, host: str | None, version: int = SCHEMA_VERSION) -> RunCase:
    """Return the case of a run whose state was just read. Read its change mark before, if that matters.

    The shim lets go of the lock first and takes the mark away second.

    Raises:
        OSError: its files cannot be looked at.
    """
    if run.files.forbidden is not None:  # 1
        return RunCase.FOREIGN
    if version > SCHEMA_VERSION:  # 2, before anything is written
        return RunCase.NEWER
    if not is_here(host):  # 3
        return RunCase.ELSEWHERE
    if status.is_terminal:  # 4
        return RunCase.ENDED
    if run.result.exists():  # 5
        return RunCase.RESULT_LEFT
    return case_of_processes(run)


def case_of_processes(run: RunPaths) -> RunCase:
    """Return the case of a run that has not ended and left no result: `LIVES` or `DEAD`. Raises OSError."""
    if read_exit(run) is None and locks.is_held(run.live_lock):  # 6
        return RunCase.LIVES
    return RunCase.DEAD  # 7


def is_over(run: RunPaths, status: Status, *, is_marked: bool) -> bool:
    """Whether nothing of a run is left to reconcile, in any case: the run has ended, and its tree is gone.

    `is_marked` says that the run still has its change mark, which a reader has to remove.
    """
    return status.is_terminal and not is_marked and tree_is_gone(run)
