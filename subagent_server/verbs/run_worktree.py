"""The worktree of a run: planned by the start, made by the worker, settled at the end, later dropped.

`worktree.json` has its state and is written under `worktree.lock`. Tested in `tests/worktrees/`.
"""

import os
import time
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from subagent_server.process import marks
from subagent_server.run.agent_definition import BUILT_IN, AgentDefinition
from subagent_server.run.errors import (
    BadArgument,
    CallerError,
    RunRefused,
    StorageFailed,
    SubagentError,
    UnreadableMeta,
    shorten,
    storing,
)
from subagent_server.run.files import is_directory
from subagent_server.run.journal import count
from subagent_server.run.locks import exclusive
from subagent_server.run.paths import RunPaths
from subagent_server.run.records import RunMeta, RunRequest, Worktree, WorktreeState
from subagent_server.run.stderr import failpoint
from subagent_server.run.store import RunStore, read_worktree, write_worktree
from subagent_server.sandbox.verify import can_box
from subagent_server.settings import state_directory_of
from subagent_server.verbs.live_runs import written_by_live_runs
from subagent_server.verbs.service import Service
from subagent_server.worktrees.git import GIT_SECONDS, LEADS_ELSEWHERE, GitFailed
from subagent_server.worktrees.making import make_worktree
from subagent_server.worktrees.reading import Reader
from subagent_server.worktrees.settling import (
    HOLDS_MORE,
    drop_files,
    drop_worktree,
    settle_worktree,
    take_over,
)
from subagent_server.worktrees.store_of_run import (
    BRANCHES,
    NoWorktree,
    find_repository,
    is_of_run,
    is_written,
    repository_of,
    store_of,
)


class UnmergedWork(CallerError):
    """A run has changes in its worktree that nothing else has."""

    code = "unmerged_work"

    def __init__(self, run_id: str, branch: str, why: str) -> None:
        super().__init__(
            f"Run {run_id} stays, because {why} on {branch}: `subagent merge {run_id}` merges it, and "
            f"`subagent rm --drop-unmerged {run_id}` drops it."
        )


def worktree_of(store: RunStore, run_id: str) -> tuple[Worktree | None, WorktreeState | None]:
    """Return the worktree of a run and its state; None for what the run has not, or nobody can read."""
    with suppress(SubagentError):
        return store.read(run_id).worktree, read_worktree(store.paths.run(run_id))
    return None, None


def reader_at(store: RunStore, path: Path) -> Reader | None:
    """Return the reader of the worktree that a run of this root has at a path; None if none has it.

    Raises:
        GitFailed, NotOurs: its repository cannot be opened.
    """
    worktree, state = worktree_of(store, path.name)
    if worktree is None or state is None or worktree.path != str(path):
        return None
    return Reader(repository_of(worktree, os.environ), worktree, state, os.environ)


# -- Planned by the start, in some milliseconds: git is asked, and nothing is written.


def new_worktree(service: Service, agent: AgentDefinition, cwd: Path, run_id: str) -> Worktree:
    """Return the worktree of a run of `agent` that is started in `cwd`.

    Raises:
        NoWorktree, GitFailed: there can be none.
    """
    settings = service.settings
    if settings.state_directory is None:
        raise NoWorktree("isolation: worktree cannot be kept, because it needs a home directory: set HOME.")
    real = Path(os.path.realpath(cwd))
    root = Path(os.path.realpath(settings.state_directory)) / "worktrees"
    try:
        str(root).encode()  # records hold text
    except UnicodeEncodeError as error:
        raise NoWorktree(
            f"isolation: worktree cannot be kept, because worktrees are made in {shorten(str(root), 200)}, "
            "which is not UTF-8: set XDG_STATE_HOME to another directory."
        ) from error
    names = {
        "path": str(root / run_id),
        "branch": f"{BRANCHES}/{agent.tool_name.removeprefix('run_')}-{run_id.rpartition('-')[2]}",
    }
    if real.is_relative_to(root):
        return _worktree_of_worktree(service.store, real, root, names)
    written = written_by_live_runs(settings.state_directory)
    found = find_repository(settings.environment, real, written=written)
    if root.is_relative_to(found.top):
        raise NoWorktree(
            f"isolation: worktree cannot be kept, because worktrees are made in {root}, which lies "
            f"in the repository {found.top} itself: set XDG_STATE_HOME to another directory."
        )
    common, prefix = str(found.common), found.prefix
    return Worktree(**names, base=found.head, origin=str(found.top), prefix=prefix, repository=common)


def _worktree_of_worktree(store: RunStore, real: Path, root: Path, names: dict[str, str]) -> Worktree:
    """Return the worktree of a run that begins where another run is: in the worktree of that one."""
    owner, *parts = real.relative_to(root).parts or ("",)
    if (reader := reader_at(store, root / owner)) is None:
        raise NoWorktree(
            f"isolation: worktree cannot be kept in {real}, which is no worktree of a run of this root."
        )
    head, prefix, above = reader.head().tip, "/".join(parts), reader.worktree
    return Worktree(**names, base=head, origin=above.path, prefix=prefix, repository=above.repository)


def base_of_worktree(service: Service, agent: AgentDefinition, cwd: Path) -> str:
    """Return the commit from which a worktree for this agent would begin now; empty if it gets none.

    Raises:
        BadArgument: there can be no worktree.
    """
    if agent.isolation != "worktree":
        return ""
    try:
        return new_worktree(service, agent, cwd, "planned").base
    except (NoWorktree, GitFailed) as error:
        raise BadArgument(error.sentence) from error


def worktree_of_previous(store: RunStore, previous: RunMeta) -> Worktree | None:
    """Return the worktree of a run that continues `previous`; it is taken over if it is still there.

    A run that ended before it took a worktree over has left it where it was.

    Raises:
        CallerError: the run that `previous` is a copy of still works in it.
    """
    if previous.worktree is None:
        return None
    _check_is_no_copy(store.paths.run(previous.run_id))
    state = read_worktree(store.paths.run(previous.run_id)) or _handed(store, previous)
    if state is None and previous.worktree.taken_from is not None:
        return worktree_of_previous(store, store.read(previous.worktree.taken_from))
    is_there = state is None or state.phase not in ("removing", "removed")
    return previous.worktree.model_copy(update={"taken_from": previous.run_id if is_there else None})


def directory_before_worktree(meta: RunMeta, request: RunRequest) -> str:
    """Return the directory that a run was started for: the origin of its worktree, if it has one."""
    worktree = meta.worktree
    return request.cwd if worktree is None else str(Path(worktree.origin, worktree.prefix))


# -- Made by the worker, before anything of the agent works.


def prepare_worktree(
    store: RunStore, meta: RunMeta, definition: Mapping[str, Any], environment: MutableMapping[str, str]
) -> None:
    """Make the worktree of a run, if it gets one, or take over the worktree of the run that it continues.

    `definition` is that of its agent. `environment`, which its programs get, loses what would lead git from
    the worktree to the repository of the starter, as of a hook.

    Raises:
        RunRefused: no worktree can be made here.
        SubagentError: git or the disk refused.
    """
    worktree, run = meta.worktree, store.paths.run(meta.run_id)
    if worktree is None:
        return
    for name in LEADS_ELSEWHERE:
        environment.pop(name, None)
    _check_unwritten(worktree)
    boxed = _works_in_box(definition, Path(worktree.origin))
    try:
        state = None
        with storing(Path(worktree.path)):
            if worktree.taken_from is not None:
                hand_over(store, worktree.taken_from, meta.run_id)
                state = _taken_over(store, worktree, worktree.taken_from, boxed=boxed)
            if state is None:
                # Half a worktree is never taken for changes: until it is whole, the record is `removing`.
                write_worktree(run, WorktreeState(phase="removing"))
                _bring_base(store, worktree)
                state = make_worktree(worktree, os.environ, boxed=boxed)
    except CallerError as error:
        raise RunRefused("config", f"isolation: worktree cannot be kept: {error.sentence}") from error
    failpoint("worktree.made")
    write_worktree(run, state)
    if not is_directory(Path(worktree.path, worktree.prefix)):
        where = shorten(str(Path(worktree.origin, worktree.prefix)), 200)
        raise RunRefused(
            "config",
            f"isolation: worktree cannot be kept in {where}, because nothing of it is committed.",
            "Commit a file in it, or start the run elsewhere.",
        )


def _check_unwritten(worktree: Worktree) -> None:
    """Refuse a repository that a live run can write, which may have begun while this one waited."""
    written = written_by_live_runs(state_directory_of(os.environ))
    if is_written(Path(worktree.origin), Path(worktree.repository), written):
        raise RunRefused(
            "config",
            "isolation: worktree cannot be kept, because a run that is at work can write its repository.",
            "Start it again when that run has ended.",
        )


def _works_in_box(definition: Mapping[str, Any], origin: Path) -> bool:
    """Whether the programs of the run will be in a box: then nothing of it is read outside of one."""
    wanted = definition.get("sandbox", "auto")
    if wanted != "auto" or definition.get("runner", "messages") not in BUILT_IN:
        return bool(wanted == "bwrap")
    return can_box(os.environ, [origin, *written_by_live_runs(state_directory_of(os.environ))])


def _bring_base(store: RunStore, worktree: Worktree) -> None:
    """Bring the commit of another run, in whose worktree this one begins, into the repository."""
    git = repository_of(worktree, os.environ)
    if is_of_run(worktree.origin, worktree) and git.commit(worktree.base) is None:
        if (reader := reader_at(store, Path(worktree.origin))) is None:
            raise GitFailed("find the base of the worktree", f"{worktree.origin} is gone")
        reader.take(worktree.base)


def _taken_over(store: RunStore, worktree: Worktree, before: str, *, boxed: bool) -> WorktreeState | None:
    """Return the state of the worktree of an ended run, or None if that had no changes and was removed."""
    old = read_worktree(store.paths.run(before)) or WorktreeState(phase="working")
    if old.phase == "removing":
        drop_worktree(worktree, os.environ)
    if old.phase in ("removing", "removed"):
        return None
    if not is_directory(Path(worktree.path)):
        raise RunRefused(
            "config",
            f"The worktree {worktree.path} of run {before} is gone, so this run has no directory to work in.",
            "Start a new run instead.",
        )
    take_over(worktree, old, os.environ)
    return old.model_copy(update={"phase": "working", "handed_to": None, "trouble": None, "boxed": boxed})


def _handed(store: RunStore, meta: RunMeta) -> WorktreeState | None:
    """Return how the worktree was handed to a run that has no record of it yet; None if there is none."""
    before = None if meta.worktree is None else meta.worktree.taken_from
    state = None if before is None else read_worktree(store.paths.run(before))
    if state is None or state.handed_to != meta.run_id or state.phase in ("removing", "removed"):
        return None
    return state.model_copy(update={"handed_to": None})


# -- The end, and what comes after it.


_SLOW_SECONDS, _REST_SECONDS = 1.0, 30.0
_LIST_SECONDS = 15.0
"""How long each command of git may take where somebody waits for a list: a few sparse files of a run, which
take no room on the disk, can delay the reading of its worktree beyond any limit. It is longer than git itself
waits for a lock (`core.packedRefsTimeout`)."""
_held_up: dict[str, float] = {}
"""Until when this process leaves a repository alone in which git failed after a wait, as for a lock.

Lists look at many runs: each would wait for it again.
"""


def settle(
    store: RunStore, meta: RunMeta, *, patience: float = GIT_SECONDS, seconds: float = GIT_SECONDS
) -> WorktreeState | None:
    """Keep or remove the worktree of a run whose programs have ended; None if it has none, or not any more.

    `patience` is how long another process may be at it, and `seconds` how long each command may take.

    Raises:
        SubagentError: it could not be settled, and the reason is on record; nothing is lost, and the next
            reader tries again.
    """
    worktree = meta.worktree
    if worktree is None:
        return None
    run = store.paths.run(meta.run_id)
    _check_is_no_copy(run)
    with exclusive(run.worktree_lock, patience):
        state = read_worktree(run)
        if state is not None and state.is_settled:
            return state
        if state is None:
            if (handed := _handed(store, meta)) is None:
                return None  # nothing was made
            state = handed.model_copy(update={"phase": "working"})
        return _settled(run, meta, worktree, state, seconds)


def _check_is_no_copy(run: RunPaths) -> None:
    """Leave a worktree to the run that works in it, of which `run` is a copy. Raises CallerError."""
    if marks.is_copy_of_live(run):
        raise CallerError(
            f"Run {run.run_id} is a copy of a run that still works in the worktree: wait for its end, or "
            "stop it where it was started."
        )


def settle_if_possible(
    store: RunStore, meta: RunMeta, *, patience: float = GIT_SECONDS, seconds: float = GIT_SECONDS
) -> WorktreeState | SubagentError | None:
    """Settle a worktree; return its new state, or the reason why it could not be settled."""
    repository, began = "" if meta.worktree is None else meta.worktree.repository, time.monotonic()
    if began < _held_up.get(repository, 0.0):
        return GitFailed("settle the worktree", "it was held up in that repository a moment ago")
    try:
        return settle(store, meta, patience=patience, seconds=seconds)
    except SubagentError as error:
        if time.monotonic() - began > _SLOW_SECONDS:
            _held_up[repository] = time.monotonic() + _REST_SECONDS
        return error


def open_worktree(store: RunStore, run_id: str) -> str | None:
    """Return why the worktree of an ended run could not be settled yet; None if it is, or was not tried."""
    worktree, state = worktree_of(store, run_id)
    return None if worktree is None or state is None or state.is_settled else state.trouble


def is_settled(store: RunStore, meta: RunMeta) -> bool:
    """Whether the worktree of an ended run is settled, if it has one; if it is not, this tries once more."""
    if meta.worktree is None:
        return True
    with suppress(UnreadableMeta):
        state = read_worktree(store.paths.run(meta.run_id))
        if state is None or state.is_settled:
            return True
    settled = settle_if_possible(store, meta, patience=0, seconds=_LIST_SECONDS)
    return not isinstance(settled, SubagentError)


def _settled(
    run: RunPaths, meta: RunMeta, worktree: Worktree, state: WorktreeState, seconds: float
) -> WorktreeState:
    def begin_removal(going: WorktreeState) -> None:
        write_worktree(run, going)
        failpoint("worktree.removing")

    subject = f"Changes of {meta.agent_name} that run {meta.run_id} left uncommitted"
    message = f"{subject}\n\nSubagent-Run: {meta.run_id}\n"
    try:
        with storing(Path(worktree.path)):
            if state.phase != "removing" and _is_away(meta, worktree):
                raise GitFailed("read what the run has left", f"{worktree.path} is not on this host")
            state = settle_worktree(worktree, state, message, os.environ, begin_removal, seconds=seconds)
    except SubagentError as error:
        with suppress(StorageFailed):  # a full disk may be the trouble
            left = read_worktree(run) or state
            write_worktree(run, left.model_copy(update={"trouble": error.sentence}))
        raise
    write_worktree(run, state)
    return state


def _is_away(meta: RunMeta, worktree: Worktree) -> bool:
    """Whether a worktree that is not here may be on the node of its run, which shares the runs root alone."""
    is_here = is_directory(Path(worktree.path)) or is_directory(store_of(worktree))
    return not is_here and meta.launch is not None and meta.launch.lease is not None


def unmerged(meta: RunMeta, state: WorktreeState | None) -> str | None:
    """Return why removing the worktree of a settled run would lose something, or None."""
    worktree = meta.worktree
    if worktree is None or state is None or state.handed_to is not None:
        return None
    if state.phase in ("removing", "removed"):
        return None
    if not is_directory(Path(worktree.path)) and not is_directory(Path(worktree.repository)):
        return None
    if any(note.startswith(HOLDS_MORE) for note in state.notes):
        return "it holds work that its branch has not"
    if not state.is_settled:
        return f"nobody could read what it has left ({state.trouble})"
    try:
        git = repository_of(worktree, os.environ)
        # Not `commit`: a branch whose commit is away is not one that a person has deleted.
        named = ("for-each-ref", "--format=%(objectname)", f"refs/heads/{worktree.branch}")
        tip = git.line("read the branch", *named)
        if tip in ("", state.merged_tip):
            return None
        others = ("--not", f"--exclude={worktree.branch}", "--branches", "--remotes", "--tags")
        left = int(git.line("compare branches", "rev-list", "--count", tip, *others))
    except GitFailed as error:
        return f"nobody can say whether its work is merged ({error.sentence})"
    return f"{count(left, 'commit')} of it {'is' if left == 1 else 'are'} not merged" if left else None


def drop(
    store: RunStore,
    meta: RunMeta,
    *,
    drop_unmerged: bool = False,
    only_look: bool = False,
    of_many: bool = False,
) -> None:
    """Delete the worktree and the branch of a run that is about to be removed, as one `of_many` or by its id.

    Raises:
        UnmergedWork: work would be lost, and the caller did not ask for that.
        CallerError: another run has taken it over meanwhile.
        SubagentError: it could not be deleted.
    """
    worktree = meta.worktree
    if worktree is None:
        return
    run = store.paths.run(meta.run_id)
    try:
        state = settle(store, meta, seconds=_LIST_SECONDS if of_many else GIT_SECONDS)
    except GitFailed:
        if is_directory(Path(worktree.repository)) and not drop_unmerged:
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
        check_not_handed_over(meta.run_id, read_worktree(run))  # it was not locked since the first look
        write_worktree(run, state.model_copy(update={"phase": "removing"}))
        if is_directory(Path(worktree.repository)):
            drop_worktree(worktree, os.environ)
        else:
            drop_files(worktree)
        write_worktree(run, state.model_copy(update={"phase": "removed"}))


def hand_over(store: RunStore, before: str, run_id: str) -> None:
    """Record that run `run_id` has taken the worktree of an ended run over.

    Raises:
        CallerError: another run has it, or there is no such run any more.
        SubagentError: the record cannot be written.
    """
    run, meta = store.paths.run(before), store.read(before)
    with exclusive(run.worktree_lock, GIT_SECONDS):
        state = read_worktree(run) or _handed(store, meta) or WorktreeState(phase="removed")
        check_not_handed_over(before, state, run_id)
        write_worktree(run, state.model_copy(update={"handed_to": run_id}))


def check_not_handed_over(run_id: str, state: WorktreeState | None, to: str | None = None) -> None:
    """Refuse a run whose worktree another run has. Raises CallerError."""
    if state is not None and state.handed_to not in (None, to):
        raise CallerError(
            f"The worktree of run {run_id} was taken over by run {state.handed_to}, which continues it: "
            "name that run."
        )
