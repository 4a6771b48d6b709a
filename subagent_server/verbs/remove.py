"""Removing runs that are over. A run is there with all its files, or is gone: the directory is renamed first.

Only runs without any further use are removed: not a live run, not the parent or child of a live run, not what
a continuation has still to read, and not a directory that may be a start in the making. Children of a removed
run stay: each is removed by its own name, or by its own age.

Tested in `tests/cli/test_rm.py` and `tests/cli/test_prune.py`.
"""

import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache, lru_cache, partial

from subagent_server.process import marks
from subagent_server.run import locks
from subagent_server.run.errors import (
    CallerError,
    HostError,
    NewerSchema,
    StorageFailed,
    SubagentError,
    UnknownRun,
    UnreadableMeta,
    shorten,
)
from subagent_server.run.files import NotPlain, remove_tree
from subagent_server.run.paths import REMOVED_CHILD, RunPaths
from subagent_server.run.processes import now
from subagent_server.run.states import SCHEMA_VERSION, Status, is_run_id
from subagent_server.run.store import RunStore, drop_vain, mark_seen, newer_version, read_request, read_state
from subagent_server.verbs.reconcile import is_over, observe, tree_is_gone
from subagent_server.verbs.run_worktree import drop

START_SECONDS = 3_600.0
"""A directory without a state that nobody has touched for so long, and nobody holds, is no start any more."""


class StillNeeded(CallerError):
    """The run lives, or its parent or a child lives."""

    code = "still_needed"


class StillEnding(StillNeeded):
    """The run has ended, and its processes live: most are gone a moment later."""


class NotARun(CallerError):
    """A directory that is not a run by its state and holds files of somebody else."""

    code = "not_a_run"

    def __init__(self, run: RunPaths, name: str) -> None:
        super().__init__(
            f"{run.directory} holds {shorten(name)} and is not a run, so it stays: "
            "move it out of the runs directory."
        )


@dataclass(frozen=True)
class Age:
    """Which runs are old: ended before `older_than` ago, and not among the newest `keep` that have ended."""

    older_than: timedelta = timedelta()
    keep: int = 0


@dataclass(frozen=True)
class Pruned:
    """A run that was (or would be) removed; `why` is the reason if an old run stays."""

    run_id: str
    why: str | None = None


def remove(store: RunStore, run_id: str, *, drop_unmerged: bool = False) -> None:
    """Remove a finished run with its worktree and branch, or a run with an unreadable state.

    With `drop_unmerged` changes in its worktree that were not merged may go too.

    Raises:
        UnmergedWork: changes would be lost.
        NotARun: the directory has no readable state of this run, and a file that no run has.
        StillNeeded: the run lives, or its parent or a child lives, or the directory may be a start in the
            making.
        NewerSchema: a later version wrote it.
        InvalidRunId, UnknownRun: there is no such run.
        ForeignRoot: the root is not ours.
        StorageFailed: the run could not be renamed, and is whole.
        HostError: the run is gone, and some of its files are left.
    """
    store.paths.check_ours()
    parent = _check_removable(store, run_id, _waited_for(store, *store.paths.marks()))
    _drop_worktree(store, run_id, drop_unmerged=drop_unmerged)
    _take_away(store, run_id, parent)


def prune(store: RunStore, age: Age, *, dry_run: bool = False) -> Iterator[Pruned]:
    """Remove old runs, and starts that never were, the newest first; yield each, and last those that stay.

    A kill in between leaves the rest for the next time, and no run half removed. `dry_run` changes nothing.

    Raises:
        ForeignRoot: the root is not ours.
    """
    store.paths.check_ours()
    if not dry_run:
        sweep(store)
    is_unfinished = cache(partial(_is_unfinished, store))
    waited_for = lru_cache(maxsize=1)(partial(_waited_for, store))  # one may be continued meanwhile
    gone = set[str]()
    wanted: Iterable[str] = _old(store, age)
    stayed = list[Pruned]()
    while True:
        needed, before = list[Pruned](), len(gone)
        for run_id in wanted:
            try:
                parent = _check_removable(store, run_id, waited_for(*store.paths.marks()))
                _check_not_needed(
                    store, run_id, parent, lambda flow: flow not in gone and is_unfinished(flow)
                )
                _drop_worktree(store, run_id, only_look=dry_run, of_many=True)
                if not dry_run:
                    _take_away(store, run_id, parent)
            except UnknownRun:
                continue  # somebody else was quicker
            except StillNeeded as error:
                needed.append(Pruned(run_id, error.sentence))
            except SubagentError as error:
                stayed.append(Pruned(run_id, error.sentence))
            else:
                gone.add(run_id)
                yield Pruned(run_id)
        if not needed or len(gone) == before:
            yield from sorted([*stayed, *needed], key=lambda each: each.run_id, reverse=True)
            return
        wanted = [each.run_id for each in needed]  # a flow goes before the runs that it has started


def sweep(store: RunStore) -> None:
    """Delete the remains of earlier, killed removals, and the marks of runs that no longer exist."""
    removed = store.paths.removed
    with suppress(OSError):
        for name in removed.names():
            # Renamed first: another removal at work on it then finds it gone, and not impossible to delete.
            left = removed.entry(f"{name.partition('.')[0]}.{secrets.token_hex(4)}")
            with suppress(OSError):
                removed.entry(name).rename(left)
                remove_tree(left)
    for name in filter(is_run_id, store.paths.marks()):
        drop_vain(store.paths.run(name))


def _check_not_needed(
    store: RunStore, run_id: str, parent: str | None, is_unfinished: Callable[[str], bool]
) -> None:
    """Refuse a run that an unfinished flow would use: one that it started, or that it continues.

    Raises:
        StillNeeded, UnreadableMeta.
    """
    after = store.continuation_of(run_id)
    needs = {"started": parent, "continues": None if after is None else after.run_id}
    for how, flow in needs.items():
        if flow is not None and is_unfinished(flow):
            raise StillNeeded(
                f"Run {run_id} stays, because flow {flow}, which {how} it, has not completed: remove "
                "that first."
            )


def _is_unfinished(store: RunStore, flow: str) -> bool:
    """Whether a run is of a flow, and neither it nor a run that continues it, in turn, has completed."""
    turns = [flow]
    while (after := store.continuation_of(turns[-1])) is not None and after.run_id not in turns:
        turns.append(after.run_id)
    try:
        return all(
            store.read(run_id).status is not Status.COMPLETED and store.read_request(run_id).runner == "flow"
            for run_id in turns
        )
    except UnknownRun:
        return False  # it was removed


# -- Which runs are old.


def _old(store: RunStore, age: Age) -> Iterator[str]:
    moment, ended = now(), 0
    for run_id in store.newest_first():
        run = store.paths.run(run_id)
        try:
            end = read_state(run).ended_at or observe(store, run_id).meta.ended_at
        except UnknownRun:
            if _never_was(run, moment):
                yield run_id
            continue
        except SubagentError:
            continue  # nobody knows how old it is: `rm` removes it, and `doctor --runs` names it
        if end is None:
            continue
        ended += 1
        if ended > age.keep and moment - end >= age.older_than:
            yield run_id


def _never_was(run: RunPaths, moment: datetime) -> bool:
    """Whether a directory without a state is a failed start: it is old, its lock free, its files a run's."""
    try:
        if run.other_names():
            return False
        touched = max(run.files.entry(name).stat().st_mtime for name in (".", *run.files.names()))
        return moment.timestamp() - touched > START_SECONDS and not locks.is_held(run.live_lock)
    except OSError:
        return False


# -- Whether a run may be removed.


def _waited_for(store: RunStore, *marked: str) -> dict[str, str]:
    """Return runs that continuations among these have still to read, as one in a queue has, and by which."""
    waiting = (
        meta
        for meta in store.readable(marked)
        if not meta.status.is_terminal and not store.paths.run(meta.run_id).transcript.exists()
    )
    return {meta.continues_run_id: meta.run_id for meta in waiting if meta.continues_run_id is not None}


def _check_removable(store: RunStore, run_id: str, waited_for: dict[str, str]) -> str | None:
    """Check that a run may be removed, and return its parent, if any.

    Raises:
        NotARun, StillNeeded, NewerSchema, InvalidRunId, UnknownRun, StorageFailed, LockTimeout.
    """
    run = store.paths.run(run_id)
    # 1. Nobody here knows what belongs to a run of a newer version.
    if (version := newer_version(run)) is not None:
        raise NewerSchema(run_id, version, SCHEMA_VERSION)
    # 2. The run itself: ended, and nothing of it lives. Of an unreadable one only the machine shows it.
    try:
        parent = _parent_of_settled(store, run, is_marked=store.is_marked(run_id))
    except UnreadableMeta:
        _check_is_run(run)
        if _is_held(run) or marks.processes_of(run_id):  # its state does not show them
            raise StillNeeded(
                f"The state of run {run_id} cannot be read, but its processes live: end them."
            ) from None
        return None
    # 3. Those who read it: a continuation as it begins, a live child its parent, a live parent its children.
    if (after := waited_for.get(run_id)) is not None:
        raise StillNeeded(
            f"Run {run_id} stays until run {after}, which continues it, has read it: try again then."
        )
    for relative in (*([] if parent is None else [parent]), *store.children_of(run_id)):
        if store.is_marked(relative) and _lives(store, relative):
            raise StillNeeded(f"Run {run_id} stays while run {relative} of its tree lives: stop that first.")
    return parent


def _parent_of_settled(store: RunStore, run: RunPaths, *, is_marked: bool) -> str | None:
    try:
        meta = read_state(run)
        if is_over(run, meta.status, is_marked=is_marked):
            return meta.parent_run_id
        observed = observe(store, run.run_id)
    except UnknownRun:
        _check_never_was(store.paths.run(run.run_id))  # another removal may have taken what `run` has open
        with suppress(UnreadableMeta):  # it may have a mark in its parent's directory
            return read_request(run).parent_run_id
        return None
    meta = observed.meta
    if observed.live or not meta.status.is_terminal:
        raise (StillEnding if meta.status.is_terminal else StillNeeded)(
            f"Run {run.run_id} is {meta.status.value}{' and its processes live' if observed.live else ''}: "
            f"`subagent stop {run.run_id}` ends it, then it can be removed."
        )
    if observed.live is None and not tree_is_gone(run):
        if meta.launch is not None and meta.launch.lease is not None:
            why = f"{observed.reason}. Within {2 * meta.launch.lease:g} s of silence it is known: try again."
            raise StillNeeded(f"Run {run.run_id} may have processes: {why}")
        host = "another host" if meta.launch is None else meta.launch.host
        raise StillNeeded(
            f"Run {run.run_id} may have processes on {host}: remove it there. If {host} is gone for good, "
            f"`subagent stop --host-gone {run.run_id}` says so."
        )
    return meta.parent_run_id


def _lives(store: RunStore, run_id: str) -> bool:
    try:
        observed = observe(store, run_id)
    except UnknownRun:
        return False
    except UnreadableMeta:
        return _is_held(store.paths.run(run_id))
    return observed.live is not False or not observed.meta.status.is_terminal


def _check_is_run(run: RunPaths) -> None:
    """Refuse a directory with a file that no run has, and without a state that proves a run."""
    other = run.other_names()
    if other:
        raise NotARun(run, other[0])


def _check_never_was(run: RunPaths) -> None:
    """Refuse a directory without a state that may be a start in the making."""
    if not run.files.exists():
        raise UnknownRun(run.run_id, run.directory.parent)
    _check_is_run(run)
    if not _never_was(run, now()):
        raise StillNeeded(f"Run {run.run_id} may be about to start: try again in an hour.")


def _is_held(run: RunPaths) -> bool:
    """Whether a process keeps a run; an entry instead of its lock that is not a file has no holder."""
    try:
        return locks.is_held(run.live_lock)
    except NotPlain:
        return False


# -- How it goes: the worktree before its record, and the directory renamed before it is deleted.


def _drop_worktree(store: RunStore, run_id: str, **how: bool) -> None:
    """Delete the worktree of a run before the record of it goes. Raises UnknownRun, and as `drop` does."""
    run = store.paths.run(run_id)
    if run.worktree.exists():  # most runs have none, and this spares the reading of their state
        with suppress(UnreadableMeta):  # nobody knows where its worktree is: that stays
            try:
                drop(store, store.read(run_id), **how)
            except StorageFailed:
                store.read(run_id)  # another removal may have been quicker: then the run is unknown
                raise


def _take_away(store: RunStore, run_id: str, parent: str | None) -> None:
    run, removed = store.paths.run(run_id), store.paths.removed
    taken = removed.entry(f"{run_id}.{secrets.token_hex(4)}")
    try:
        removed.make()
        store.paths.open().entry(run_id).rename(taken)
    except FileNotFoundError as error:
        raise UnknownRun(run_id, store.paths.root) from error
    except OSError as error:
        raise StorageFailed(run.directory, error.strerror or str(error)) from error
    with suppress(OSError):
        store.paths.change_mark(run_id).unlink()
    mark_seen(run)
    with suppress(OSError):
        if parent is not None and is_run_id(parent):
            children = store.paths.run(parent).children
            children.entry(run_id).rename(children.entry(REMOVED_CHILD))
    remove_tree(taken)
    if taken.exists():
        raise HostError(
            f"Run {run_id} is gone, but not all of its files: {removed.path} has what could not be deleted. "
            "The next `subagent prune` tries again."
        )
