"""Reconciliation: make the state of a run agree with the machine. Every reader of a run does this first.

Tested in `tests/verbs/test_run_case.py`, `tests/faults/` and `tests/end_to_end/test_worker_deaths.py`.
"""

import json
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import Any

from subagent_server.process import beat, marks
from subagent_server.process.launcher import Sight
from subagent_server.run import durable, locks, processes, transitions
from subagent_server.run.control_groups import GROUPS
from subagent_server.run.errors import (
    BadArgument,
    StorageFailed,
    SubagentError,
    UnknownRun,
    UnreadableMeta,
    visible,
)
from subagent_server.run.journal import RunJournal, recorded_usage
from subagent_server.run.locks import exclusive
from subagent_server.run.paths import RECORD_BYTES, RunPaths
from subagent_server.run.processes import now
from subagent_server.run.records import NEXT_STEP, Failure, LaunchInfo, RunMeta, Usage
from subagent_server.run.states import SCHEMA_VERSION, Status
from subagent_server.run.stderr import failpoint
from subagent_server.run.store import RunStore, read_state, restore
from subagent_server.run.wake import retire
from subagent_server.verbs.access import USER, Caller, check_open
from subagent_server.verbs.left_behind import left_behind
from subagent_server.verbs.run_worktree import is_settled, settle_if_possible
from subagent_server.verbs.service import Service

_MOST_WORDS = 300
_FENCED = "Its node was suspended, or could not write into the runs root, and ended the run."

# -- Reading how a run ended, by the record of its shim.


def read_exit(run: RunPaths) -> dict[str, Any]:
    """Return how the worker ended, as recorded by the shim; empty without a record."""
    return durable.read_object(run.exit, RECORD_BYTES)


def tree_is_gone(run: RunPaths) -> bool:
    """Whether no process of a run is left, by its record."""
    return read_exit(run).get("treeGone") is True


# -- The tree of runs below a run, children and their children: walking the tree, and its cost.
#
# A state on disk holds the cost of a tree at its last transition (`withDescendants`); live numbers come
# from the journals of the runs still working (SPEC section 4).


def record_tree_usage(store: RunStore, run_id: str) -> None:
    """Write the cost of all runs below into an ended run, and into all ended runs above.

    A live run adds up the cost itself at its end. The run writes its end first and looks at its children
    second, a child the other way round: so at least one of the two sees the other.

    If a run above cannot be read, or is gone, nobody needs its sum, nor that of any run above it.

    Raises:
        SubagentError: a state cannot be written, or this run not read. The next call for the tree writes it.
    """
    own = store.read(run_id)
    for meta in chain((own,), store.above(own)):  # each is read after those below it were written
        if not meta.status.is_terminal or meta.schema_version > SCHEMA_VERSION:
            return
        usage = meta.usage.merged(recorded_usage(store.paths.run(run_id)) if meta is own else None)
        below = meta.with_descendants.less(meta.usage).caught_up(store.usage_below(meta.run_id))
        if (usage, usage.plus(below)) != (meta.usage, meta.with_descendants):
            store.update(meta.run_id, transitions.UsageSettled(usage=usage), now())


def children(store: RunStore, meta: RunMeta) -> Iterator[RunMeta]:
    """Yield the states of the runs started by this run, oldest first; unreadable states are left out.

    Marks and states are data: a run that does not name this run as its parent is not its child.
    """
    for child in store.readable(store.children_of(meta.run_id)):
        if child.parent_run_id == meta.run_id and child.depth > meta.depth:
            yield child


def subtree(store: RunStore, meta: RunMeta) -> Iterator[RunMeta]:
    """Yield the state of a run and of all below it, a parent before its children."""
    yield meta
    for child in children(store, meta):
        yield from subtree(store, child)


def tree_usage(store: RunStore, meta: RunMeta) -> Usage:
    """Return the cost of a run and all runs below up to now.

    The state of a run that has ended has the sum, once it and its children can no longer work.
    """
    if meta.status.is_terminal:
        family = (meta.run_id, *store.children_of(meta.run_id))
        if not any(map(store.is_marked, family)):
            return meta.with_descendants
    below = Usage()
    for child in children(store, meta):
        below = below.plus(tree_usage(store, child))
    own = meta.usage.merged(recorded_usage(store.paths.run(meta.run_id)))
    return own.plus(meta.with_descendants.less(meta.usage).caught_up(below))


def tree_cost(store: RunStore, root: str) -> Decimal:
    """Return the cost of a run and all runs below up to now, in USD; models without a price cost nothing.

    Raises:
        InvalidRunId, UnknownRun, UnreadableMeta: of `root`.
    """
    return tree_usage(store, store.read(root)).cost_usd or Decimal(0)


# -- The consequences of every end of a run: its shim gets a signal, and the runs it started end too.


def stop_run(store: RunStore, run_id: str, reason: str | None) -> None:
    """Write the end of a run, signal its shim, and stop the runs it started."""
    usage = recorded_usage(store.paths.run(run_id))
    store.update(run_id, transitions.StopRequested(reason=reason, usage=usage), now())
    signal_shim(store, run_id)
    stop_children(store, run_id)
    with suppress(SubagentError):  # its shim settles it again once all of it is gone
        record_tree_usage(store, run_id)


def signal_shim(store: RunStore, run_id: str) -> None:
    """Send TERM to the shim of an ended run. A shim not recorded yet reads the status itself."""
    run = store.paths.run(run_id)
    with suppress(SubagentError):
        end_elsewhere(run, store.read(run_id))
    shim = marks.recorded_shim(run)
    if shim is not None:
        processes.send_signal(shim, signal.SIGTERM)


def stop_children(store: RunStore, run_id: str) -> None:
    """Stop all live runs that this run started: however a run ends, its children end too.

    Those that have not begun come first: they would take the slots of those that are stopped.
    """
    started = store.readable(store.children_of(run_id))
    live = [meta for meta in started if meta.parent_run_id == run_id and not meta.status.is_terminal]
    for child in sorted(live, key=lambda meta: (meta.status is not Status.READY, meta.run_id)):
        with suppress(SubagentError):  # the doctor lists it, and the others are still stopped
            stop_run(store, child.run_id, f"run {run_id}, which started it, has ended")


OVERDUE_SECONDS = 5.0
EXIT_STORAGE = 74
"""The exit code of a worker that could not write its end: that of sysexits.h for faults of files."""
_EXIT_SECONDS = 5.0
"""How long a killed worker may take to release its locks, such as that of its worktree."""


@dataclass(frozen=True)
class Observed:
    """A run as it is: its state, and whether its processes live.

    `live` is None if that cannot be known here: they are on another host, or the root is foreign. `reason` is
    why, or what the run waits for, and `node` is the host that they are on, if it is another one.
    """

    meta: RunMeta
    live: bool | None
    reason: str | None = None
    node: str | None = None


def observe(store: RunStore, run_id: str, caller: Caller = USER) -> Observed:
    """Return the run after reconciling; in a foreign root, return the state as recorded.

    A caller without access to the run is refused first, because a look at a run may write its end.

    Raises:
        InvalidRunId, UnknownRun, UnreadableMeta: the run cannot be read.
        NotAllowed: the caller may not open the run.
        StorageFailed, LockTimeout: a necessary write failed.
    """
    run = store.paths.run(run_id)
    try:
        meta = read_state(run)
        check_open(caller, meta)
        return _reconciled(store, run, meta)
    except (OSError, StorageFailed) as error:
        if not run.directory.exists():  # it was removed while it was looked at
            raise UnknownRun(run_id, store.paths.root) from error
        if isinstance(error, StorageFailed):
            if durable.is_read_only(error):
                return _unrecorded(store, run, "can only be read")
            if durable.is_full(error):
                return _unrecorded(store, run, "has no room")
            raise
        reason = error.strerror or str(error)
        raise UnreadableMeta(run_id, Path(error.filename or run.directory), reason) from error


def _reconciled(store: RunStore, run: RunPaths, meta: RunMeta) -> Observed:
    """Compare the record of a run with its processes. The first case that fits decides."""
    launch = elsewhere(run, meta)
    # Looked at before the lock: the shim lets go of the lock first and takes the mark away second.
    is_marked = run.root.change_mark(run.run_id).exists()
    # 1. The root is not ours: the state is all that is known.
    if run.files.forbidden is not None:
        return Observed(meta, None)
    # 2. A newer version wrote the state: it is read and never changed.
    if meta.schema_version > SCHEMA_VERSION:
        return Observed(meta, locks.is_held(run.live_lock) if launch is None else None)
    # 3. Its processes are on another host, and nobody can look at them here: files, heartbeat, engine.
    if launch is not None:
        return _reconciled_elsewhere(store, run, meta, launch)
    # 4. The result counts before the processes do, or a run that finished could be called lost.
    meta = _roll_forward(store, run, meta)
    # 5. The run has ended: only its processes are in question.
    if meta.status.is_terminal:
        return Observed(meta, _end_tree(store, run, meta))
    # 6. The end of the worker is recorded, or nobody holds the run: it is dead.
    if read_exit(run) or not locks.is_held(run.live_lock):
        return _declare_dead(store, run)
    # 7. It lives.
    if not is_marked:
        restore(run)
    return Observed(_expire_questions(store, meta), True)


def _unrecorded(store: RunStore, run: RunPaths, fault: str) -> Observed:
    """Return a run as it is where no reader can record that, because the root has this fault."""
    # Whoever held the lock has written all that it could, where there is room again.
    moment, held, ended = now(), locks.is_held(run.live_lock), read_exit(run)
    meta = store.with_result(run, read_state(run), moment)
    reason = f"the runs root {fault}, so nothing is recorded"
    if elsewhere(run, meta) is not None:
        return Observed(meta, None, reason)
    if not held:
        sweep_orphans(run)  # a full root may lose the run next
    if not meta.status.is_terminal and (ended or not held):
        event = transitions.RunFailed(failure=_verdict(run, ended), usage=recorded_usage(run))
        meta = transitions.apply(meta, event, moment, store.usage_below(run.run_id))
    return Observed(meta, held, reason)


def _reconciled_elsewhere(
    store: RunStore, run: RunPaths, meta: RunMeta, launch: LaunchInfo, *, is_gone: bool = False
) -> Observed:
    """Compare the record of a run with what another host lets know. Nothing is swept or locked there.

    With `is_gone` a person vouches that the host is gone: without a heartbeat there is no other proof.
    """
    node = _node_of(run) or None
    host = node or visible(launch.host[:_MOST_NAME])
    live: bool | None
    if launch.lease is not None:
        live, reason = _look_elsewhere(run, meta, launch.kind, launch.lease)
    elif is_gone or tree_is_gone(run):
        live, reason = False, f"its host {host} is gone, as its user says" if is_gone else None
    else:
        return Observed(_expire_questions(store, meta), None, f"it runs on {host}", node)
    # 1. Files first: a result, then the recorded end of the worker.
    meta = _roll_forward(store, run, meta)
    ended = read_exit(run)
    # 2. A silence of two leases, or an engine whose node lives, is proof: then nothing can write any more.
    if not meta.status.is_terminal and (ended or live is False):
        meta, ended = _roll_forward(store, run, store.read(run.run_id)), read_exit(run)
        if not meta.status.is_terminal:
            meta = _fail(store, run, _verdict(run, ended, reason))
    # 3. It lives, is on its way, or nobody can know.
    if not meta.status.is_terminal:
        restore(run)
        return Observed(_expire_questions(store, meta), live, reason, node)
    # 4. It has ended: the tree is gone by its own record, or by that proof.
    if live is False:
        if ended.get("treeGone"):
            _retire_if_settled(store, run, meta)
        else:
            _finish_tree(store, run, meta, node or "")
    return Observed(meta, live, None if live is False else reason, node)


def declare_host_gone(service: Service, run_id: str, caller: Caller) -> None:
    """End a run, and those below it, at the word of a person: their host is gone for good.

    Raises:
        BadArgument: the caller is a run, or the run is on this host, or has a heartbeat, the better proof.
        InvalidRunId, UnknownRun, UnreadableMeta, ForeignRoot, StorageFailed, LockTimeout.
    """
    if caller.is_child:
        raise BadArgument("A run cannot say that a host is gone: ask your parent with ask_parent.")
    store = service.store
    store.paths.check_ours()
    run, meta = store.paths.run(run_id), store.read(run_id)
    launch = elsewhere(run, meta)
    if launch is None or launch.lease is not None:
        where = "is on this host" if launch is None else "has a heartbeat"
        raise BadArgument(
            f"Run {run_id} {where}, so it is seen whether it lives: leave --host-gone out to stop it."
        )
    _reconciled_elsewhere(store, run, meta, launch, is_gone=True)
    for child in children(store, meta):
        with suppress(BadArgument):  # it was put elsewhere
            declare_host_gone(service, child.run_id, caller)


def is_over(run: RunPaths, status: Status, *, is_marked: bool) -> bool:
    """Whether nothing of a run is left to reconcile, in any case: the run has ended, and its tree is gone.

    With `is_marked` the run still has its change mark, which a reader has to remove.
    """
    return status.is_terminal and not is_marked and tree_is_gone(run)


def reconcile_after_worker(store: RunStore, run_id: str, ended: dict[str, Any] | None = None) -> RunMeta:
    """Write the end of a run whose worker the shim has just collected (`worker --reconcile`).

    `ended` is the content of `exit.json`, which a full disk may have refused.
    """
    run = store.paths.run(run_id)
    meta = _roll_forward(store, run, store.read(run_id))
    if not meta.status.is_terminal:
        meta = _fail(store, run, _verdict(run, read_exit(run) or ended or {}))
    failpoint("reconcile.judged")
    settle_if_possible(store, meta)
    _close_journal(store, run, meta, at_once=True)
    stop_children(store, run_id)
    record_tree_usage(store, run_id)
    return meta


def _roll_forward(store: RunStore, run: RunPaths, meta: RunMeta) -> RunMeta:
    if not meta.status.is_terminal and run.result.exists():
        return store.roll_forward(run.run_id, now())
    return meta


def _declare_dead(store: RunStore, run: RunPaths) -> Observed:
    """Judge a run whose worker has ended, or that nobody holds."""
    # 1. Look again: the worker may have written its end after it was looked at.
    meta, ended = _roll_forward(store, run, store.read(run.run_id)), read_exit(run)
    # 2. Without a record of its end, end what lives; then nothing can write any more, so look once more.
    if not meta.status.is_terminal and not ended:
        sweep_orphans(run)
        meta, ended = _roll_forward(store, run, store.read(run.run_id)), read_exit(run)
    # 3. Judge.
    if not meta.status.is_terminal:
        meta = _fail(store, run, _verdict(run, ended))
    return Observed(meta, _end_tree(store, run, meta))


def _verdict(run: RunPaths, ended: dict[str, Any], silence: str | None = None) -> Failure:
    """Return the failure of a run that left no result; `silence` is how another host fell silent."""
    if ended.get("fenced") is True:
        return Failure(code="lost", message=_FENCED)
    if ended.get("workerStarted"):
        return _crashed(run, ended)
    if ended or "worker" not in marks.read_shim(run):
        reason = ended.get("reason")
        why = f": {silence or 'its process ended before'}."
        if isinstance(reason, str) and reason:
            why = f". {visible(reason)}"
        elif silence:
            why += _last_words(run)
        return Failure(
            code="launch_failed",
            message=f"The run's worker never started{why}",
            hint=f"Start it again; {run.worker_out.name} in its directory holds what was printed.",
        )
    return Failure(
        code="lost",
        message="The worker and the shim of the run are gone, and neither recorded how it ended"
        + (f": {silence}." if silence else "."),
    )


def _last_words(run: RunPaths) -> str:
    """Return what was printed last on the host of a run that never began, such as that Python is missing."""
    with suppress(OSError, StorageFailed):
        printed = run.worker_out.read(RECORD_BYTES).decode("utf-8", "replace").strip()
        if line := visible(printed.rpartition("\n")[2])[-_MOST_WORDS:]:
            return f" It printed: {line}"
    return ""


def _crashed(run: RunPaths, ended: dict[str, Any]) -> Failure:
    if ended.get("late") is True:
        return Failure(
            code="timeout",
            message="The time of the run was over, and its worker no longer answered: it was ended.",
            hint=f"{NEXT_STEP} {run.worker_out.name} in its directory holds what the worker printed.",
        )
    number, code = ended.get("signal"), ended.get("exitCode")
    if code == EXIT_STORAGE:
        return Failure(
            code="storage",
            message=f"The worker could not write how the run ended: {run.worker_out.name} says why.",
            hint=f"Fix that. {NEXT_STEP}",
        )
    if isinstance(number, int):
        names = {each.value: each.name for each in signal.Signals}
        how = f"was killed by {names.get(number, f'signal {number}')}"
        killer = "Without your doing that is most often memory (look at the kernel's log), or `ulimit -t`. "
        hint = (killer if number == signal.SIGKILL else "") + NEXT_STEP
    else:
        how = f"ended with exit code {code if isinstance(code, int) else 'that nobody can read'}"
        hint = f"{run.worker_out.name} in its directory holds what it printed. {NEXT_STEP}"
    return Failure(
        code="crashed",
        message=f"The worker {how} without a result.",
        hint=hint,
    )


def _fail(store: RunStore, run: RunPaths, failure: Failure) -> RunMeta:
    usage = recorded_usage(run)
    return store.update(run.run_id, transitions.RunFailed(failure=failure, usage=usage), now())


def _end_tree(store: RunStore, run: RunPaths, meta: RunMeta) -> bool:
    """Return whether the processes of an ended run still live; without a shim, end them."""
    # Looked at first: the shim records that the tree is gone, then lets go of the lock.
    held = locks.is_held(run.live_lock)
    ended = read_exit(run)
    if held:
        # Its worker should have exited long ago: the process that ended the run may have died before it
        # could send the signal. The difference counts either way: a clock may have been set back.
        since_end = 0.0 if meta.ended_at is None else abs((now() - meta.ended_at).total_seconds())
        if not ended and since_end > OVERDUE_SECONDS:
            signal_shim(store, run.run_id)
        return True
    if ended.get("treeGone"):
        _retire_if_settled(store, run, meta)
        return False
    sweep_orphans(run)
    failpoint("reconcile.swept")
    _finish_tree(store, run, meta)
    return False


def _retire_if_settled(store: RunStore, run: RunPaths, meta: RunMeta) -> None:
    durable.remove_leftovers(run.files)  # of a reader, or of the process that stopped the run
    if is_settled(store, meta):
        retire(run)  # its shim may have been killed just before it did so
    else:
        restore(run)  # so that a list looks at it again, too


def _finish_tree(store: RunStore, run: RunPaths, meta: RunMeta, node: str = "") -> None:
    """Do what the shim of an ended run would have done, on `node`: nothing of the run lives any more."""
    settled = settle_if_possible(store, meta)
    _close_journal(store, run, meta, at_once=False)
    stop_children(store, run.run_id)
    record_tree_usage(store, run.run_id)
    durable.remove_leftovers(run.files, node)
    durable.discard(run.spare)
    with suppress(OSError):
        for left in (run.sealed, run.beat):
            left.unlink()
    if _record_gone(run) and not isinstance(settled, SubagentError):
        retire(run)


def _record_gone(run: RunPaths) -> bool:
    """Record that nothing of the run lives; False if the disk refuses, and the next reader records it."""
    with exclusive(run.meta_lock):  # the record that the shim wrote before it died has more
        record = {"workerStarted": "worker" in marks.read_shim(run), **read_exit(run), "treeGone": True}
        try:
            run.sync_journal()
            durable.write_durably(run.exit, (json.dumps(record, indent=1) + "\n").encode())
        except (OSError, StorageFailed):
            return False
    return True


def sweep_orphans(run: RunPaths) -> None:
    """Kill the processes of a run whose shim is gone: worker, processes with its mark, all descendants.

    Other runs' shims and their trees are spared, and a git amid a merge is waited for. Two looks that find
    nothing end the sweep. The processes of a copied run directory belong to the original, and recorded
    processes are checked too (`process/marks.py`).
    """
    if not marks.is_original(run):
        return
    locks.wait_while_held(run.merge_lock)
    is_spared = marks.shims_on_record(run.root)
    quiet = 0
    while quiet < 2:
        worker = marks.recorded_worker(run)
        left = [*marks.processes_of(run.run_id), *([] if worker is None else [worker])]
        left += processes.descendants([identity.pid for identity in left], spare=is_spared)
        sent = [processes.send_signal(identity, signal.SIGKILL) for identity in dict.fromkeys(left)]
        quiet = 0 if any(sent) else quiet + 1  # one of another user cannot be ended, and is not waited for
    GROUPS.remove(run.run_id)
    worker = marks.dying_worker(run)
    if worker is not None:
        processes.wait_for_exit(worker, _EXIT_SECONDS)


def _close_journal(store: RunStore, run: RunPaths, meta: RunMeta, *, at_once: bool) -> None:
    """Write the end of the run into the journal if the worker did not: it is provably gone."""
    if run.journal_has_ended():
        return
    warnings: list[dict[str, Any]] = []
    with suppress(UnreadableMeta, OSError):
        left_behind(store, meta, warnings.append, at_once=at_once)
    with exclusive(run.meta_lock):
        if not run.journal_has_ended():
            journal = RunJournal(run)
            for warning in warnings:
                journal.append("warning", now(), warning)
            journal.append("run_ended", now(), ending_facts(meta))


def ending_facts(meta: RunMeta) -> dict[str, Any]:
    """Return the fields of the journal's last event."""
    facts: dict[str, Any] = {
        "status": meta.status.value,
        "usage": meta.usage.to_wire(),
    }
    if meta.with_descendants != meta.usage:
        facts["withDescendants"] = meta.with_descendants.to_wire()
    if meta.error is not None:
        facts["error"] = meta.error.to_wire()
    if meta.summary:
        facts["summary"] = meta.summary
    return facts


def _expire_questions(store: RunStore, meta: RunMeta) -> RunMeta:
    """Write the expiry of questions whose time is over. The worker does so too; the first one counts."""
    moment = now()
    for message in meta.pending:
        if message.expires_at is not None and message.expires_at <= moment:
            meta = store.update(
                meta.run_id, transitions.QuestionExpired(message_id=message.message_id), moment
            )
    return meta


# -- The verdict on a run whose processes are on another host: by its files, its heartbeat, and its engine.
#
# Nothing that only a host of its own can know is asked: no pid, no `/proc`, no FIFO, no free lock. The order
# of belief is that of SPEC section 12.


FRESH = 4
"""A beat younger than this part of a lease is that of a living run."""
BEGIN_SECONDS = 120.0
"""A run in no queue begins within so long after it was published, or never: a starter has half of it."""
_MOST_NAME = 64


def elsewhere(run: RunPaths, meta: RunMeta) -> LaunchInfo | None:
    """Return the launch of a run whose processes are, or were, on another host; None if they are here."""
    launch = meta.launch
    if launch is None:
        return None
    if launch.kind == "local":
        return None if launch.host == processes.host_name() else launch
    # Two hosts of `ssh` may have one name; a host that was booted anew has no process of the run.
    shim = marks.shim_on_record(run)
    here = (processes.host_name(), processes.boot_id())
    return None if shim is not None and (shim.host, shim.boot_id) == here else launch


def _node_of(run: RunPaths) -> str:
    """Return the host on which the shim of a run recorded to be; empty without one."""
    shim = marks.shim_on_record(run)
    return "" if shim is None else visible(shim.host[:_MOST_NAME])


def _look_elsewhere(run: RunPaths, meta: RunMeta, kind: str, lease: float) -> tuple[bool | None, str | None]:
    """Return whether the processes of a run live, None if nobody can know, and why, in words for people.

    Ages are in seconds, by the clock of the file server. Raises OSError, StorageFailed: it refuses.
    """
    # 1. Its own record. A shim reads the state after its claim: of a run that ended before, none will begin.
    if tree_is_gone(run) or (meta.status.is_terminal and not run.shim_claim.exists()):
        return False, None
    # 2. The heartbeat.
    age = beat.age(run, run.beat)
    if age is not None and abs(age) < lease / FRESH:
        return True, None
    # 3. The engine: a script that ended on a living node is proof, and any other answer is none. It is asked
    #    after the look at the lock, which a starter releases once the engine has its job.
    is_starting = age is None and locks.is_held(run.live_lock)  # a free lock proves nothing
    sight = _sight(kind, run.run_id)
    if sight.state in ("waiting", "ended"):
        return sight.state == "waiting", sight.words
    says = f"; {sight.words}" if sight.words else ""
    # 4. Without a beat its process is still starting, or will never start. To call it dead is safe in either
    #    case: a shim that begins reads the state first.
    if age is None:
        if is_starting or sight.state == "working":
            return True, "is being started"
        is_over = sight.state == "gone" and (beat.age(run, run.meta) or 0.0) > BEGIN_SECONDS
        return False if is_over else None, f"there was no sign of it{says}"
    # 5. The lease: after two of them the fence has fallen. A beat of tomorrow proves nothing: the clock of
    #    the file server was set back, or somebody wrote it.
    ago = f"{age:.0f} s ago" if age >= 0 else "at a time to come"
    return False if age > 2 * lease else None, f"{_node_of(run) or 'its node'} was last heard {ago}{says}"


def _sight(kind: str, run_id: str) -> Sight:
    if kind != "slurm":
        return Sight("gone")
    from subagent_server.process import slurm  # most roots have no run of an engine

    return slurm.sight(run_id)


def end_elsewhere(run: RunPaths, meta: RunMeta) -> None:
    """Ask the engine to end a run whose end is on disk. Its worker sees that by itself within 2 s."""
    if meta.launch is not None and meta.launch.kind == "slurm":
        from subagent_server.process import slurm

        slurm.cancel(run.run_id)
