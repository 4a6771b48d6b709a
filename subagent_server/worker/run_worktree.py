"""The worktree of a run, as its worker makes it or takes it over, and leaves it."""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from subagent_server.run.errors import CallerError, RunRefused, SubagentError
from subagent_server.run.records import Worktree, WorktreeState
from subagent_server.run.stderr import failpoint
from subagent_server.run.store import read_worktree, write_worktree
from subagent_server.sandbox.verify import can_box
from subagent_server.verbs.left_behind import (
    hand_over,
    inherited_state,
    settle_if_possible,
    worktree_of,
)
from subagent_server.worker.worker_run import WorkerRun
from subagent_server.worktrees.git import GitFailed
from subagent_server.worktrees.making import make_worktree
from subagent_server.worktrees.reading import Reader
from subagent_server.worktrees.settling import drop_worktree, take_over
from subagent_server.worktrees.store_of_run import is_of_run, repository_of


def prepare_worktree(run: WorkerRun, definition: Mapping[str, Any]) -> None:
    """Make the worktree of the run, if it gets one, or take over the worktree of the continued run.

    Raises:
        RunRefused: no worktree can be made here.
        SubagentError: git or the disk refused.
    """
    meta = run.meta()
    worktree = meta.worktree
    if worktree is None:
        return
    boxed = _works_in_box(definition)
    try:
        state = None
        if worktree.taken_from is not None:
            hand_over(run.store, run.store.read(worktree.taken_from), run.run_id)
            state = _taken_over(run, worktree, worktree.taken_from, boxed=boxed)
        if state is None:
            # Half a worktree is never taken for changes: until it is whole, the record says that it goes.
            write_worktree(run.paths, WorktreeState(phase="removing"))
            _bring_base(run, worktree)
            state = make_worktree(worktree, os.environ, boxed=boxed)
    except (OSError, CallerError) as error:
        why = error.sentence if isinstance(error, CallerError) else f"{error.filename}: {error.strerror}"
        raise RunRefused("config", f"isolation: worktree cannot be kept: {why}") from error
    failpoint("worktree.made")
    write_worktree(run.paths, state)


def _works_in_box(definition: Mapping[str, Any]) -> bool:
    """Whether the programs of the run will be in a box: then nothing of it is read outside of one."""
    wanted = definition.get("sandbox", "auto")
    if wanted != "auto" or definition.get("runner", "messages") != "messages":
        return bool(wanted == "bwrap")
    return can_box(os.environ)


def _bring_base(run: WorkerRun, worktree: Worktree) -> None:
    """Bring the commit of another run, in whose worktree this one begins, into the repository."""
    git = repository_of(worktree, os.environ)
    above, state = worktree_of(run.store, Path(worktree.origin).name)
    if is_of_run(worktree.origin, worktree) and git.commit(worktree.base) is None:
        if above is None or state is None or above.path != worktree.origin:
            raise GitFailed("find the base of the worktree", f"{worktree.origin} is gone")
        Reader(git, above, state, os.environ).take(worktree.base)


def _taken_over(run: WorkerRun, worktree: Worktree, before: str, *, boxed: bool) -> WorktreeState | None:
    """Return how the worktree of an ended run stands, or None if that had no changes and was removed."""
    old = read_worktree(run.store.paths.run(before)) or WorktreeState(phase="working")
    if old.phase == "removing":
        drop_worktree(worktree, os.environ)
    if old.phase in ("removing", "removed"):
        return None
    if not Path(worktree.path).is_dir():
        raise RunRefused(
            "config",
            f"The worktree {worktree.path} of run {before} is gone, so this run has no place to work in.",
            "Start a new run instead.",
        )
    take_over(worktree, old, os.environ)
    taken = inherited_state(run.store, before)
    return taken.model_copy(update={"handed_to": None, "trouble": None, "boxed": boxed})


async def leave_worktree(run: WorkerRun) -> WorktreeState | None:
    """Commit what the run has changed, or remove its worktree; a failure is a warning of the run."""
    meta = run.meta()
    if meta.worktree is None:
        return None
    os.chdir(run.paths.directory)  # the place may go
    state = await asyncio.to_thread(settle_if_possible, run.store, meta)
    if isinstance(state, SubagentError):
        more = "The next reader of the run tries again."
        run.record("warning", message=f"The worktree of the run was not settled. {state.sentence} {more}")
        return None
    return state
