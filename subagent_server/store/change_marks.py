"""The marks of possibly live runs, in `.changes`: a file for each run, touched at each change of the run.

A mark is made with the run and removed when its tree is gone, so a reader of a large root looks at live runs
only. A watcher of the directory hears of every change. Each mark may be lost: readers look by a slow poll,
too, and a reader of a live run without a mark restores the mark.
"""

from contextlib import suppress

from subagent_server.domain.errors import ForeignRoot
from subagent_server.host import locks, wake
from subagent_server.store.paths import RunPaths


def announce(run: RunPaths) -> None:
    """Wake all waiters for a change of this run. After a lost wake-up, their slow poll finds the change."""
    with suppress(OSError):
        mark = run.root.change_mark(run.run_id)
        if mark.exists():
            mark.touch()
        _wake_sleepers(run)


def restore(run: RunPaths) -> None:
    """Restore the mark of a live run, if missing."""
    with suppress(OSError):
        run.root.changes.make()
        run.root.change_mark(run.run_id).touch()


def retire(run: RunPaths) -> None:
    """Remove the mark of a run whose tree is gone, and wake its watchers."""
    with suppress(OSError):
        run.root.change_mark(run.run_id).unlink()
        _wake_sleepers(run)


def drop_vain(run: RunPaths) -> None:
    """Remove the mark of a run that is gone, or whose start was killed before it was one.

    A start holds the lock of its run from before the mark until the state is written.
    """
    with suppress(OSError, ForeignRoot):
        if not run.files.exists() or not (locks.is_held(run.live_lock) or run.meta.exists()):
            run.root.change_mark(run.run_id).unlink()


def _wake_sleepers(run: RunPaths) -> None:
    for fifo in run.sleepers():
        wake.poke(fifo)
