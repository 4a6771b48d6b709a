"""The worktree of a run, as its worker makes it or takes it over, and leaves it."""

import asyncio
import os
from pathlib import Path

from subagent_server.domain.errors import CallerError, RunRefused, SubagentError
from subagent_server.domain.records import Worktree
from subagent_server.domain.worktrees import WorktreeState
from subagent_server.host.failpoints import failpoint
from subagent_server.service.worktree_end import hand_over, inherited_state, settle_if_possible
from subagent_server.store.run_files import write_worktree
from subagent_server.worker.run_context import WorkerRun
from subagent_server.worktrees.making import make_worktree
from subagent_server.worktrees.settling import drop_worktree


def prepare_worktree(run: WorkerRun) -> None:
    """Make the worktree of the run, if it gets one, or take over the worktree of the continued run.

    Raises:
        RunRefused: no worktree can be made here.
        SubagentError: git or the disk refused.
    """
    meta = run.meta()
    worktree = meta.worktree
    if worktree is None:
        return
    try:
        state = None
        if worktree.taken_from is not None:
            hand_over(run.store, run.store.read(worktree.taken_from), run.run_id)
            state = _taken_over(run, worktree, worktree.taken_from)
        if state is None:
            # Half a worktree is never taken for changes: until it is whole, the record says that it goes.
            write_worktree(run.paths, WorktreeState(phase="removing"))
            state = make_worktree(worktree, os.environ)
    except (OSError, CallerError) as error:
        why = error.sentence if isinstance(error, CallerError) else f"{error.filename}: {error.strerror}"
        raise RunRefused("config", f"isolation: worktree cannot be kept: {why}") from error
    failpoint("worktree.made")
    write_worktree(run.paths, state)


def _taken_over(run: WorkerRun, worktree: Worktree, before: str) -> WorktreeState | None:
    """Return how the worktree of an ended run stands, or None if that had no changes and was removed."""
    state = inherited_state(run.store, before)
    if state.phase == "removing":
        drop_worktree(worktree, os.environ)
    if state.phase in ("removing", "removed"):
        return None
    if not Path(worktree.path).is_dir():
        raise RunRefused(
            "config",
            f"The worktree {worktree.path} of run {before} is gone, so this run has no place to work in.",
            "Start a new run instead.",
        )
    return state.model_copy(update={"handed_to": None})


async def leave_worktree(run: WorkerRun) -> WorktreeState | None:
    """Commit what the run has changed, or remove its worktree; a failure is a warning of the run."""
    meta = run.meta()
    if meta.worktree is None:
        return None
    os.chdir(run.paths.directory)  # the place may go
    state = await asyncio.to_thread(settle_if_possible, run.store, meta)
    if isinstance(state, SubagentError):
        run.record("warning", message=f"The worktree of the run was not settled. {state.sentence}")
        return None
    return state
