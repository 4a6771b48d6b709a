"""The marks of runs that may be live, in `.changes`: one file a run, touched at each change of the run.

A mark is made with the run and removed when its tree is gone, so that a reader of a large root looks at live
runs only. A watcher of the directory hears of every change. Each mark may be lost: readers look by a slow
poll, too, and whoever meets a live run without a mark puts it back.
"""

from contextlib import suppress

from subagent_server.host import wake
from subagent_server.store.paths import RunPaths


def announce(run: RunPaths) -> None:
    """Wake all who wait for a change of this run. If that is lost, they find it by their slow poll."""
    with suppress(OSError):
        mark = run.root.change_mark(run.run_id)
        if mark.exists():
            mark.touch()
        _wake_sleepers(run)


def restore(run: RunPaths) -> None:
    """Put a live run back among those that may be live, if somebody has removed its mark."""
    with suppress(OSError):
        run.root.changes.make()
        run.root.change_mark(run.run_id).touch()


def retire(run: RunPaths) -> None:
    """Remove the mark of a run whose tree is gone, and wake its watchers."""
    with suppress(OSError):
        run.root.change_mark(run.run_id).unlink()
        _wake_sleepers(run)


def _wake_sleepers(run: RunPaths) -> None:
    for fifo in run.sleepers():
        wake.poke(fifo)
