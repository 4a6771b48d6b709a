"""The worktree of a run when the run ends, is carried on, merged or removed.

Tested in `tests/worktrees/`.
"""

import os
from contextlib import suppress
from pathlib import Path

from subagent_server.domain.errors import CallerError, StorageFailed, SubagentError, UnreadableMeta
from subagent_server.domain.records import RunMeta, Worktree
from subagent_server.domain.worktrees import WorktreeState
from subagent_server.host.failpoints import failpoint
from subagent_server.host.locks import exclusive
from subagent_server.store.paths import RunPaths
from subagent_server.store.run_files import read_worktree, write_worktree
from subagent_server.store.runs import RunStore
from subagent_server.worktrees.git import GIT_SECONDS, GitFailed
from subagent_server.worktrees.settling import (
    HOLDS_REPOSITORIES,
    drop_files,
    drop_worktree,
    settle_worktree,
)
from subagent_server.worktrees.store import repository_of


class UnmergedWork(CallerError):
    """A run has changes in its worktree that nothing else has."""

    code = "unmerged_work"

    def __init__(self, run_id: str, branch: str, why: str) -> None:
        super().__init__(
            f"Run {run_id} stays, because {why} on {branch}: `subagent merge {run_id}` merges it, and "
            f"`subagent rm --drop-unmerged {run_id}` drops it."
        )


def worktree_of(store: RunStore, run_id: str) -> tuple[Worktree | None, WorktreeState | None]:
    """Return the worktree of a run and how it stands; None for what the run has not, or nobody can read."""
    with suppress(SubagentError):
        return store.read(run_id).worktree, read_worktree(store.paths.run(run_id))
    return None, None


def settle(store: RunStore, meta: RunMeta, *, patience: float = GIT_SECONDS) -> WorktreeState | None:
    """Keep or remove the worktree of a run whose programs have ended; None if it has none, or not any more.

    `patience` is how long another process may be at it, in seconds.

    Raises:
        SubagentError: it could not be settled, and the reason is on record; nothing is lost, and the next
            reader tries again.
    """
    worktree = meta.worktree
    if worktree is None:
        return None
    run = store.paths.run(meta.run_id)
    with exclusive(run.worktree_lock, patience):
        state = read_worktree(run)
        if state is not None and state.is_settled:
            return state
        if state is None:
            if worktree.taken_from is None:
                return None  # nothing was made
            state = inherited_state(store, worktree.taken_from)
            if state.handed_to != meta.run_id or state.phase in ("removing", "removed"):
                return None
            state = state.model_copy(update={"handed_to": None})
        return _settled(run, meta, worktree, state)


def open_worktree(store: RunStore, run_id: str) -> str | None:
    """Return why the worktree of an ended run could not be settled yet; None if it is, or was not tried."""
    worktree, state = worktree_of(store, run_id)
    return None if worktree is None or state is None or state.is_settled else state.trouble


def is_settled(store: RunStore, meta: RunMeta) -> bool:
    """Whether the worktree of an ended run is settled, if it has one; what was not is tried once more."""
    if meta.worktree is None:
        return True
    with suppress(UnreadableMeta):
        state = read_worktree(store.paths.run(meta.run_id))
        if state is None or state.is_settled:
            return True
    return not isinstance(settle_if_possible(store, meta, patience=0), SubagentError)


def inherited_state(store: RunStore, before: str) -> WorktreeState:
    """Return how the worktree of an ended run stands for the run that took it. Raises UnreadableMeta."""
    state = read_worktree(store.paths.run(before)) or WorktreeState(phase="working")
    phase = "working" if state.phase == "kept" else state.phase
    return state.model_copy(update={"phase": phase})


def _settled(run: RunPaths, meta: RunMeta, worktree: Worktree, state: WorktreeState) -> WorktreeState:
    def begin_removal(going: WorktreeState) -> None:
        write_worktree(run, going)
        failpoint("worktree.removing")

    subject = f"Changes of {meta.agent_name} that run {meta.run_id} left uncommitted"
    message = f"{subject}\n\nSubagent-Run: {meta.run_id}\n"
    try:
        state = settle_worktree(worktree, state, message, os.environ, begin_removal)
    except (OSError, SubagentError) as error:
        if isinstance(error, SubagentError):
            failed = error
        else:
            failed = GitFailed("settle the worktree", error.strerror or str(error))
        with suppress(StorageFailed):  # a full disk may be the trouble
            left = read_worktree(run) or state
            write_worktree(run, left.model_copy(update={"trouble": failed.sentence}))
        raise failed from error
    write_worktree(run, state)
    return state


def unmerged(meta: RunMeta, state: WorktreeState | None) -> str | None:
    """Return why removing the worktree of a settled run would lose something, or None."""
    worktree = meta.worktree
    if worktree is None or state is None or state.handed_to is not None or state.phase != "kept":
        return None
    if not Path(worktree.path).exists() and not Path(worktree.repository).exists():
        return None
    if any(note.startswith(HOLDS_REPOSITORIES) for note in state.notes):
        return "it holds repositories that no commit has"
    try:
        git = repository_of(worktree, os.environ)
        tip = git.commit(f"refs/heads/{worktree.branch}")
    except GitFailed as error:
        return f"nobody can say whether its work is merged ({error.sentence})"
    if tip is None or tip == state.merged_tip:
        return None
    others = ("--not", f"--exclude={worktree.branch}", "--branches", "--remotes", "--tags")
    left = int(git.line("compare branches", "rev-list", "--count", tip, *others))
    return None if not left else f"{left:,} commit{'' if left == 1 else 's'} of it are not merged"


def drop(store: RunStore, meta: RunMeta, *, drop_unmerged: bool, only_look: bool = False) -> None:
    """Delete the worktree and the branch of a run that is about to be removed.

    Raises:
        UnmergedWork: work would be lost, and the caller did not ask for that.
        SubagentError: it could not be deleted.
    """
    worktree = meta.worktree
    if worktree is None:
        return
    run = store.paths.run(meta.run_id)
    try:
        state = settle(store, meta)
    except GitFailed:
        if Path(worktree.repository).exists():
            raise
        state = read_worktree(run)
    if state is None or state.handed_to is not None or state.phase == "removed":
        return
    why = unmerged(meta, state)
    if why is not None and not drop_unmerged:
        raise UnmergedWork(meta.run_id, worktree.branch, why)
    if only_look:
        return
    with exclusive(run.worktree_lock, GIT_SECONDS):
        write_worktree(run, state.model_copy(update={"phase": "removing"}))
        if Path(worktree.repository).exists():
            drop_worktree(worktree, os.environ)
        else:
            drop_files(worktree)
        write_worktree(run, state.model_copy(update={"phase": "removed"}))


def hand_over(store: RunStore, old: RunMeta, run_id: str) -> None:
    """Record that run `run_id` has taken the worktree of an ended run over.

    Raises:
        CallerError: another run has it.
        SubagentError: the record cannot be written.
    """
    run = store.paths.run(old.run_id)
    with exclusive(run.worktree_lock, GIT_SECONDS):
        state = read_worktree(run) or WorktreeState(phase="kept")
        check_not_handed_over(old.run_id, state, run_id)
        write_worktree(run, state.model_copy(update={"handed_to": run_id}))


def check_not_handed_over(run_id: str, state: WorktreeState | None, to: str | None = None) -> None:
    """Refuse a run whose worktree another run has. Raises CallerError."""
    if state is not None and state.handed_to not in (None, to):
        raise CallerError(
            f"The worktree of run {run_id} was taken over by run {state.handed_to}, which carries it on: "
            "name that run."
        )


def settle_if_possible(
    store: RunStore, meta: RunMeta, *, patience: float = GIT_SECONDS
) -> WorktreeState | SubagentError | None:
    """Settle a worktree; return its new state, or the reason why it could not be settled."""
    try:
        return settle(store, meta, patience=patience)
    except SubagentError as error:
        return error
