"""What a run leaves behind: files that other programs execute, and its worktree.

Such files are moved away or named, and given back to a person who wants them. During the run its worker
watches for them (`worker/protected_paths.py`); what a killed worker left undone is done here. The worktree is
settled when the run ends, and handed over, merged or dropped later.

Tested in `tests/worktrees/` and `tests/sandbox/test_executed_changes.py`.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from subagent_server.run.confined_path import printable
from subagent_server.run.errors import (
    BadArgument,
    CallerError,
    StorageFailed,
    SubagentError,
    UnreadableMeta,
    shorten,
)
from subagent_server.run.executed_files import can_run_code
from subagent_server.run.locks import exclusive
from subagent_server.run.paths import RunPaths, is_marked
from subagent_server.run.processes import boot_id
from subagent_server.run.records import RunMeta, Worktree, WorktreeState
from subagent_server.run.stderr import failpoint
from subagent_server.run.store import RunStore, read_request, read_worktree, write_worktree
from subagent_server.sandbox.file_watch import NameWatch, OwnWrites, Seen, Taken, changes, look, read_mark
from subagent_server.sandbox.quarantine import Kept, Quarantine
from subagent_server.settings import state_directory_of
from subagent_server.verbs.access import Caller, NotAllowed
from subagent_server.worktrees.git import GIT_SECONDS, GitFailed
from subagent_server.worktrees.settling import HOLDS_REPOSITORIES, drop_files, drop_worktree, settle_worktree
from subagent_server.worktrees.store_of_run import is_pointer, repository_of

MAX_SHOWN = 20
"""How many files are named; of more, the number is said."""
MAX_PATH_CHARACTERS = 300


def look_for_run(store: RunStore, cwd: Path, hooks: tuple[str, ...] = ()) -> Seen:
    """Return what can run code in the directory of a run, given by its real path. Blocking, up to 0.5 s.

    `hooks` are what `own_hooks` has found before the run. Runs roots are left out, and our state directory,
    in which worktrees are: what other runs do there is their own business.
    """
    state = state_directory_of(os.environ)
    ours = {Path(os.path.realpath(path)) for path in (store.paths.root, state) if path is not None}

    def is_ours(path: Path) -> bool:
        return path in ours or path.name == ".subagent" or is_marked(path)

    return look(cwd, hooks, leave_out=is_ours)


def left_since(before: Seen | None, after: Seen, since: float) -> list[str]:
    """Return what came or changed between two looks, for people; see `executed_changes.changes`."""
    found = changes(before, after, since)
    shown = [printable(path[:MAX_PATH_CHARACTERS]) for path in found[:MAX_SHOWN]]
    if len(found) > MAX_SHOWN:
        shown.append(f"and {len(found) - MAX_SHOWN} more")
    if after.cut and not (before is not None and before.cut):
        shown.append("and maybe more (the directory has grown too large to be looked at)")
    return shown


def left_behind(
    store: RunStore, meta: RunMeta, record: Callable[[dict[str, Any]], None], *, at_once: bool
) -> None:
    """Move away what came during a command whose worker was killed, and record what else the run has left.

    Without a first look only times tell what is new. What came is moved if this is `at_once` after the end:
    later, it may be the person's. After a restart of the machine nothing is looked at: all its runs died at
    once, and one list reads them. Blocking, up to 0.5 s.

    Raises:
        UnreadableMeta: the request of the run cannot be read.
        OSError: a directory cannot be opened.
    """
    if meta.started_at is None or meta.launch is None or meta.launch.boot_id != boot_id():
        return
    run = store.paths.run(meta.run_id)
    request = read_request(run)
    cwd = Path(os.path.realpath(request.cwd))
    mark = read_mark(run.before)
    if mark is not None and at_once:
        names = NameWatch(
            cwd, Quarantine(run.quarantine), OwnWrites(state_directory_of(os.environ)), _lifted(request.agent)
        )
        taken = names.take(*mark)
        names.close()
        if taken:
            record(taken_facts(taken, cwd))
        run.before.unlink()
    seen = look_for_run(store, cwd)
    if meta.worktree is not None and is_pointer(cwd / ".git", meta.worktree):
        seen = seen.without(".git")  # made for this run, and not by it
    if left := left_since(None, seen, meta.started_at.timestamp()):
        record(left_facts(left))


def _lifted(agent: dict[str, Any]) -> list[str]:
    """Return the paths below the directory that a recorded agent gives free; the record is data."""
    paths = agent.get("sandboxWrite")
    named = [path for path in paths if isinstance(path, str)] if isinstance(paths, list) else []
    return [path for path in named if not path.startswith(("/", "~/"))]


def left_facts(found: list[str]) -> dict[str, Any]:
    """Return the fields of the warning in the journal."""
    return {"message": can_run_code(found), "canRunCode": found}


def taken_facts(taken: Taken, cwd: Path) -> dict[str, Any]:
    """Return the fields of the warning in the journal about what came during a command."""
    during = shorten((*(kept.during for kept in taken.moved), "a command")[0])
    moved = [shown_kept(kept, cwd) for kept in taken.moved]
    sentences = [
        f"Moved to quarantine, because it came during {during} and other programs execute it by themselves: "
        f"{', '.join(moved)}. `subagent show RUN --restore NUMBER` gives it back."
        if moved
        else "",
        f"Other programs execute it by themselves, and it could not be moved away: {', '.join(taken.stuck)}."
        if taken.stuck
        else "",
    ]
    return {
        "message": " ".join(filter(None, sentences)),
        **({"quarantined": moved} if moved else {}),
        **({"canRunCode": list(taken.stuck)} if taken.stuck else {}),
    }


def shown_kept(kept: Kept, cwd: Path) -> str:
    """Return number and path of one thing in quarantine."""
    return f"{kept.number} {kept.shown(cwd)[:MAX_PATH_CHARACTERS]}"


def quarantined(run: RunPaths, cwd: Path) -> list[str]:
    """Return what is in the quarantine of a run, for people."""
    return [shown_kept(kept, cwd) for kept in Quarantine(run.quarantine).kept()]


def restore(store: RunStore, run_id: str, name: str, caller: Caller) -> Path:
    """Give back what is in the quarantine of a run under a number, or the last one of that path.

    Raises:
        NotAllowed: the caller is a run.
        BadArgument: there is no such thing, or it cannot be given back.
        UnreadableMeta, ForeignRoot.
    """
    if caller.is_child:
        raise NotAllowed("Only a person gives back what is in quarantine: leave --restore out.")
    store.paths.check_ours()
    run = store.paths.run(run_id)
    cwd = Path(os.path.realpath(read_request(run).cwd))
    quarantine = Quarantine(run.quarantine)
    kept = _kept(quarantine.kept(), name, cwd)
    path = Path(kept.path)
    if ".." in path.parts or not (path.is_relative_to(cwd) or path.parent in cwd.parents):
        raise BadArgument(f"{kept.number} was not in the directory of run {run_id}, so it stays there.")
    try:
        with OwnWrites(state_directory_of(os.environ)).writing(path):  # a command that runs leaves it then
            quarantine.give_back(kept)
    except FileExistsError as error:
        raise BadArgument(f"There is something at {shorten(kept.shown(cwd))}: move it away first.") from error
    except OSError as error:
        why = error.strerror or str(error)
        raise BadArgument(f"{shorten(kept.shown(cwd))} could not be given back ({why}).") from error
    return path


def _kept(found: Sequence[Kept], name: str, cwd: Path) -> Kept:
    for kept in reversed(found):
        if name in (kept.number, kept.path, kept.shown(cwd)):
            return kept
    there = ", ".join(shown_kept(kept, cwd) for kept in found[:MAX_SHOWN]) or "nothing"
    raise BadArgument(f"The quarantine holds no {shorten(name)}, but {there}: name one of these.")


# -- The worktree of a run when the run ends, is continued, merged or removed.


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
            f"The worktree of run {run_id} was taken over by run {state.handed_to}, which continues it: "
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
