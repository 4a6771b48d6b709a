"""The verb `merge_run`: bring what a run has changed into the working copy that its worktree was made of.

Tested in `tests/worktrees/`.
"""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from subagent_server.run import locks
from subagent_server.run.errors import storing, visible
from subagent_server.run.files import PrivateDirectory, held_open, is_directory
from subagent_server.run.journal import count
from subagent_server.run.processes import host_name
from subagent_server.run.records import RunMeta, Worktree, WorktreeState
from subagent_server.run.store import check_not_newer, read_worktree, write_worktree
from subagent_server.verbs.access import USER, Caller, NotAllowed
from subagent_server.verbs.live_runs import live_runs
from subagent_server.verbs.reconcile import observe
from subagent_server.verbs.run_worktree import check_not_handed_over, reader_at, settle, worktree_of
from subagent_server.verbs.service import Service
from subagent_server.worktrees.git import GIT_SECONDS, NO_PROGRAMS
from subagent_server.worktrees.merging import MergeOrder, MergeWay, NotMerged, merge_branch
from subagent_server.worktrees.reading import Reader
from subagent_server.worktrees.store_of_run import is_of_run, is_written, repository_of

_LOCK = "merging.lock"
_SUBJECT_CHARACTERS = 200


@dataclass(frozen=True)
class Merged:
    """A merge that is done: `commit` is what the working copy `into` has checked out now."""

    run_id: str
    branch: str
    into: str
    commit: str
    sentence: str


def merge_run(service: Service, run_id: str, way: MergeWay = "merge", caller: Caller = USER) -> Merged:
    """Merge the branch of an ended run into the working copy that it came from, or one above that.

    A nested run goes into the worktree of the run that started it, so work goes up a tree step by step. A run
    may merge those that it started, and nothing else.

    Raises:
        NotMerged: there is nothing to merge, or not yet, or it conflicts; the working copy is as it was.
        NotAllowed, NewerSchema, InvalidRunId, UnknownRun, UnreadableMeta, GitFailed, StorageFailed,
        LockTimeout.
    """
    service.store.paths.check_ours()
    observed = observe(service.store, run_id, caller)
    meta = observed.meta
    if caller.run_id == meta.run_id:
        raise NotAllowed(f"Run {run_id} is your own: its parent merges it when it has ended.")
    check_not_newer(meta)
    if meta.worktree is None:
        raise NotMerged(f"Run {run_id} has no worktree of its own, so there is nothing to merge.")
    if not meta.status.is_terminal:
        raise NotMerged(f"Run {run_id} is still at work: wait for its end with wait_for_runs, then merge it.")
    # The worker settles before it writes the end, so its last processes need not be gone to merge.
    if observed.live is False:
        state = settle(service.store, meta)
    else:
        state = read_worktree(service.store.paths.run(run_id))
        if state is not None and state.phase in ("working", "removing"):
            raise NotMerged(f"The last processes of run {run_id} are still ending: try again in a moment.")
    check_not_handed_over(run_id, state)
    if state is None or state.phase != "kept":
        raise NotMerged(f"Run {run_id} has left no changes: there is nothing to merge.")
    with (
        locks.exclusive(service.store.paths.run(run_id).worktree_lock, GIT_SECONDS),
        _alone(service),
        _sweeps_waiting(service, caller) as holds,
    ):
        return _merged(service, meta, meta.worktree, way, caller, holds)


def _alone(service: Service) -> AbstractContextManager[None]:
    """Hold off other merges of this user: if git makes two at once, one may stay half in the index."""
    state = service.settings.state_directory
    return (
        nullcontext() if state is None else locks.exclusive(PrivateDirectory(state).entry(_LOCK), GIT_SECONDS)
    )


@contextmanager
def _sweeps_waiting(service: Service, caller: Caller) -> Iterator[list[int]]:
    """Yield the lock for git by which the end of a run that merges waits for it; none if a person does."""
    if caller.run_id is None:
        yield []
        return
    file = service.store.paths.run(caller.run_id).merge_lock
    with storing(file.path):
        descriptor = locks.open_lock(file)
    with held_open(descriptor):
        locks.lock(descriptor)
        yield [descriptor]


def _merged(
    service: Service, meta: RunMeta, worktree: Worktree, way: MergeWay, caller: Caller, holds: list[int]
) -> Merged:
    run = service.store.paths.run(meta.run_id)
    state = read_worktree(run) or WorktreeState(phase="removed")
    git = repository_of(worktree, os.environ)
    now = git.commit(f"refs/heads/{worktree.branch}")
    if now is None and state.tip is not None:
        raise NotMerged(
            f"{worktree.branch} is gone: `git branch {worktree.branch} {state.tip[:12]}` brings it back, "
            "then it can be merged."
        )
    if state.tip is None or now != state.tip:
        raise NotMerged(
            f"{worktree.branch} is not where run {meta.run_id} has left it: look at it, then merge it by "
            f"hand (`git merge {worktree.branch}`)."
        )
    target, into = _target(service, meta, worktree, caller)
    common = Path(worktree.repository)
    shown = f"{worktree.branch} into {target}"
    # A person may have undone an earlier merge, as by `git reset`, so what is there decides.
    before = state.merged_into if state.merged_tip == state.tip else None
    message = _message(meta, worktree)
    live = live_runs(service.settings.state_directory)
    if is_written(target, common, [path for run in live for path in run.writes]):
        raise NotMerged(
            f"{worktree.branch} was not merged: a run that is at work can write its repository. Try again "
            "when that run has ended."
        )
    workers = [run.worker.pid for run in live if run.worker.host == host_name() and run.writes_in(target)]
    order = MergeOrder(
        target,
        common,
        worktree.branch,
        worktree.base,
        state.tip,
        way,
        message,
        into,
        before,
        workers,
        holds,
        signs=not caller.is_child,
    )
    commit, had_it = merge_branch(order, os.environ)
    if before is None or not had_it:
        write_worktree(run, state.model_copy(update={"merged_tip": state.tip, "merged_into": commit}))
    counts = f"{count(state.files, 'file')}, +{state.insertions:,} -{state.deletions:,}"
    done = "merged already." if had_it else f"merged ({way}; {counts}), now at {commit[:12]}."
    return Merged(meta.run_id, worktree.branch, str(target), commit, f"{shown}: {done}")


def _target(
    service: Service, meta: RunMeta, worktree: Worktree, caller: Caller
) -> tuple[Path, Reader | None]:
    """Return the working copy to merge into, and its reader if it is the worktree of a run.

    A worktree that has gone, because its run had no changes of its own, is passed over on the way up.
    """
    run_id = meta.run_id
    while not is_directory(Path(worktree.origin)):
        above, _ = worktree_of(service.store, Path(worktree.origin).name)
        if not is_of_run(worktree.origin, worktree) or above is None or caller.is_child:
            raise NotMerged(
                f"{worktree.origin}, where run {run_id} came from, is gone: merge {worktree.branch} by "
                "hand where you want it."
            )
        worktree = above
    target = Path(worktree.origin)
    if not is_of_run(target, worktree):
        return target, None
    if (reader := reader_at(service.store, target)) is None:
        raise NotMerged(
            f"{target} is no worktree that run {run_id} could be merged into: merge {worktree.branch} by "
            "hand where you want it."
        )
    return target, reader


def _message(meta: RunMeta, worktree: Worktree) -> str:
    about = visible(" ".join((meta.label or meta.summary or "").split()))[:_SUBJECT_CHARACTERS]
    subject = f"{meta.agent_name}: {about}" if about else f"Merge {worktree.branch}"
    return f"{subject}\n\nSubagent-Run: {meta.run_id}\n"


def run_diff(service: Service, run_id: str, caller: Caller, *, seconds: float = GIT_SECONDS) -> str:
    """Return what a run has changed in its worktree, as a patch; while it works, without untracked files.

    git may take so many seconds for it.

    Raises:
        NotMerged: it has no worktree, or none any more.
        InvalidRunId, UnknownRun, UnreadableMeta, NotAllowed, GitFailed, StorageFailed.
    """
    meta = observe(service.store, run_id, caller).meta
    worktree = meta.worktree
    state = None if worktree is None else read_worktree(service.store.paths.run(run_id))
    if worktree is None:
        raise NotMerged(f"Run {run_id} has no worktree of its own, so there is no difference to show.")
    if state is None or state.phase in ("removing", "removed"):
        return ""
    git = repository_of(worktree, os.environ, seconds=seconds)
    if state.phase == "kept" and state.tip is not None:
        words = ("diff", *NO_PROGRAMS, "--stat", "--patch", worktree.base, state.tip, "--")
        return git.run("compare", *words).decode("utf-8", "replace")
    with storing(Path(worktree.path)):
        return Reader(git, worktree, state, os.environ).difference().decode("utf-8", "replace")
