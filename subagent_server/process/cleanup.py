"""The steps of a shim after the worker has ended or could not begin: record the end, sweep, let go.

The steps are numbered on from those of `shim.py`. Their order is such that a kill in between leaves a run
that the next reader can reconcile. Standard library only: the shim imports this module.
"""

import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from subagent_server.process import marks
from subagent_server.process.slots import signal_when_free
from subagent_server.process.worker_process import EXIT_GATE_CLOSED, WorkerProgram
from subagent_server.run import durable, locks, processes, wake
from subagent_server.run.bounded_command import start_for_event
from subagent_server.run.control_groups import GROUPS
from subagent_server.run.errors import StorageFailed
from subagent_server.run.paths import RECORD_BYTES, STATE_BYTES, RunPaths
from subagent_server.run.states import TERMINAL, is_run_id, timestamp
from subagent_server.run.stderr import failpoint, log

if TYPE_CHECKING:
    from subagent_server.process.beat import Heart

LEFTOVER_GRACE_SECONDS = 2.0
"""Between TERM and KILL for processes that a worker left behind when it ended by itself."""
FORK_SECONDS = 2.0
"""How long a forked shim that has not begun may take to notice that its starter is gone."""
MERGE_SECONDS = 60.0
"""How long a git that merges for a killed worker may take: if it is ended, it leaves half of the files."""
RECONCILE_SECONDS = 30.0
RECONCILE_PAUSES = (0.0, 1.0, 4.0)
"""Before each attempt, if the one before it has failed by itself: a file that it lacked may come back, such
as a module while another version is being installed."""
_NOT_STARTED = 1 << 8
"""The wait status of a process that could not be started: as of one that exits with 1."""


def recorded_status(run: RunPaths) -> Any:
    """Return the status in the state on disk; an unreadable state has none."""
    return durable.read_object(run.meta, STATE_BYTES).get("status")


def state_has_ended(run: RunPaths) -> bool:
    """Whether the run has ended, by its state on disk."""
    return recorded_status(run) in TERMINAL


def conclude(
    run: RunPaths,
    lock: int,
    status: int | None,
    deadline: float | None,
    program: WorkerProgram,
    why: Mapping[str, Any],
    heart: "Heart | None",
) -> None:
    """Record how the run ended, end its remaining processes, and let go of `lock`.

    `status` is the worker's wait status, None if the worker has never begun; at `deadline`, on the monotonic
    clock, processes asked to end are killed; `program` writes the end into the state. `why` are facts for
    `exit.json`; `heart` beats until the tree is gone. If the end cannot be written, the tree is not recorded
    as gone: the first reader, who finds the lock free, does the rest.
    """
    facts = {**_exit_facts(status), **why}
    failpoint("shim.reaped")
    # 11. Record the end of the worker: from here on it is `crashed`, not `lost`.
    _write_exit(run, facts)
    failpoint("shim.exit_written")
    # 12. Make the state true for readers that only read the file. The sweep can take long, so it comes later.
    is_true = (status == 0 and state_has_ended(run)) or _reconcile(run, facts, program)
    failpoint("shim.reconciled")
    # 13. Sweep the processes that the run left behind, but no git amid a merge; then end the runs whose
    #     starter was among them.
    locks.wait_while_held(run.merge_lock, MERGE_SECONDS)
    _sweep(run, deadline or time.monotonic() + LEFTOVER_GRACE_SECONDS, heart)
    GROUPS.remove(run.run_id)
    _settle_orphans(run, program)
    failpoint("shim.swept")
    # 14. Remove the temporary files of writers that were killed in the middle, and the room reserved for an
    #     end that is written now.
    durable.remove_leftovers(run.files)
    if is_true:
        durable.discard(run.spare)
    # 15. Record that the tree is gone, unless step 12 failed and a reader has to look again. The journal
    #     comes first: nobody closes the journal of a run whose tree is recorded as gone.
    is_settled = is_true and _sync_journal(run) and _write_exit(run, {**facts, "treeGone": True})
    failpoint("shim.tree_gone")
    if heart is not None:
        heart.stop()
    # 16. Let the lock fall while the mark is there: a reader that its removal wakes finds the lock free.
    locks.give_back(lock)
    # 17. Remove the mark. A run that is not settled keeps its mark, so the next list looks at it; so does one
    #     with work in a worktree that could not be brought home yet.
    if is_settled and not _has_open_worktree(run):
        wake.retire(run)  # the FIFO of a killed worker has no reader, and is removed


def _settle_orphans(run: RunPaths, program: WorkerProgram) -> None:
    """Record the end of the runs that this one published, and whose shim has never begun.

    Their starters are gone, and step 12 has stopped them: nobody else would close their journals.
    """
    with suppress(OSError):
        for name in filter(is_run_id, run.children.names()):
            child = run.root.run(name)
            if child.meta.exists() and _never_gets_shim(child):
                _status_of(child, program, "--observe")


def _never_gets_shim(run: RunPaths) -> bool:
    """Whether a run whose starter is gone has no shim: a fork that has not begun lets go of the lock soon."""
    deadline = time.monotonic() + FORK_SECONDS
    while not (run.shim_claim.exists() or run.exit.exists()):
        if not locks.is_held(run.live_lock):
            return not run.shim_claim.exists()
        if time.monotonic() >= deadline:
            return False
        signal.sigtimedwait((), 0.02)
    return False


def _has_open_worktree(run: RunPaths) -> bool:
    state = durable.read_object(run.worktree, RECORD_BYTES)  # most runs have none
    return state.get("phase") in ("working", "removing") and state.get("handedTo") is None


def _exit_facts(status: int | None) -> dict[str, Any]:
    at = timestamp(processes.now())
    code = EXIT_GATE_CLOSED if status is None else os.waitstatus_to_exitcode(status)
    if code == EXIT_GATE_CLOSED:
        return {"at": at, "workerStarted": False}
    return {"at": at, "workerStarted": True, **({"signal": -code} if code < 0 else {"exitCode": code})}


def _write_exit(run: RunPaths, facts: dict[str, Any]) -> bool:
    """Write `exit.json`; False if the disk refuses, which must not keep the tree alive.

    Readers find out by the lock then, only later.
    """
    try:
        durable.write_durably(run.exit, (json.dumps(facts, indent=1) + "\n").encode())
    except StorageFailed as error:
        log(error.sentence)
        return False
    return True


def _sync_journal(run: RunPaths) -> bool:
    """Make the journal durable; False if the disk does not confirm."""
    try:
        run.sync_journal()
    except OSError as error:
        log(f"The journal of the run could not be made durable: {error}")
        return False
    return True


def _reconcile(run: RunPaths, facts: dict[str, Any], program: WorkerProgram) -> bool:
    """Make the meta file and the journal true for readers that only read them; False if that failed.

    `facts` go with it, because the disk may have refused `exit.json`. Exit code 0 alone proves nothing: a
    module that an upgrade is about to write is empty, and does nothing without a fault.
    """
    status = 0
    for pause in RECONCILE_PAUSES:
        if not os.WIFSIGNALED(status):
            signal.sigtimedwait((), pause)
        status = _status_of(run, program, "--reconcile", json.dumps(facts))
        if status == 0 and state_has_ended(run) and run.journal_has_ended():
            return True
    return False


def _status_of(run: RunPaths, program: WorkerProgram, verb: str, *more: str) -> int:
    """Return the wait status of a process of the worker's program that does `--reconcile` or `--observe`.

    It has a bound; like every process, this one may be killed meanwhile.
    """
    try:
        pid = program.spawn([verb, str(run.directory), *more])
    except OSError as error:
        log(f"The end of the run could not be recorded: {error}")
        return _NOT_STARTED
    deadline = time.monotonic() + RECONCILE_SECONDS
    while pid not in (ended := processes.reap_children()):
        if time.monotonic() >= deadline:
            os.kill(pid, signal.SIGKILL)
        signal.sigtimedwait({signal.SIGCHLD}, 0.5)
    return ended[pid]


def _sweep(run: RunPaths, deadline: float, heart: "Heart | None") -> None:
    """End every process left behind by the run, until two looks find none; other runs and `heart` are spared.

    These are all descendants of this process, marked or not, and every process with the mark of the run.
    """
    signalled: set[processes.Identity] = set()
    is_shim = marks.shims_on_record(run.root)
    watcher = None if heart is None else heart.watcher
    quiet = 0
    while quiet < 2:
        # Of a process that forks and exits at once, again and again, a look may see the end alone.
        has_news = bool(processes.reap_children())
        # it is the subreaper
        below = processes.descendants([os.getpid()], spare=lambda each: is_shim(each) or each.pid == watcher)
        left = set(below)
        if quiet and not left:  # last, because it reads all processes of the machine
            left = set(marks.processes_of(run.run_id))
        quiet = 0 if left or has_news else quiet + 1
        number = signal.SIGKILL if time.monotonic() >= deadline else signal.SIGTERM
        for identity in left if number == signal.SIGKILL else left - signalled:
            processes.send_signal(identity, number)
        signalled |= left
        if left:
            signal.sigtimedwait({signal.SIGCHLD}, 0.05)


# -- Wait for the run to be continued: no worker begins before the last process of the old run is gone.


FIRST_LOOK_SECONDS = 6.0
"""When the old run is observed at first: its shim may not have noticed that the run is over."""
LONGEST_PAUSE_SECONDS = 30.0


def is_gone(run: RunPaths) -> bool:
    """Whether no process of the run is left by its record, or the run was removed."""
    try:
        record = durable.as_object(run.exit.read(RECORD_BYTES))
    except FileNotFoundError:
        return not run.root.run(run.run_id).files.exists()  # looked for anew, in the open root
    except OSError:
        return False
    return record is not None and bool(record.get("treeGone"))


def wait_until_gone(run: RunPaths, nap: Callable[[float], bool], program: WorkerProgram) -> bool:
    """Return True once no process of `run` is left, or False if the waiting run is over.

    `nap` sleeps so many seconds, or until something happens, and returns whether to continue. A shim still
    holding the run is waited for. Without a shim, the worker's `program` reconciles the run as every reader
    does: `program` kills the remaining processes and records their end. This is repeated until they are gone.
    """
    if is_gone(run):
        return True
    signal_when_free(run.live_lock)
    held, pause = True, 1.0
    due = time.monotonic() + FIRST_LOOK_SECONDS
    while not is_gone(run):
        was_held, held = held, locks.is_held(run.live_lock)
        if (was_held and not held) or time.monotonic() >= due:
            _status_of(run, program, "--observe")
            due = time.monotonic() + pause
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        elif not nap(max(0.05, due - time.monotonic())):
            return False
    return True


# -- The hooks of the user: commands that are started at questions and ends of runs (SPEC section 11).
#
# They are read from the user's configuration where a first run is started (`verbs/start.py`) and travel
# in memory down its tree, with an environment of their own. So neither an agent file nor a run decides what
# is executed.


VARIABLE = "SUBAGENT_HOOKS"
"""In the environment of a worker: the commands and their environment, as JSON."""
HOOK_SECONDS = 30.0
_FACTS = ("runId", "label", "status", "summary")


def fire(hooks: str | None, event: str, facts: Mapping[str, Any]) -> None:
    """Start the command of an event, if there is one, and do not wait for it.

    What it prints goes to stderr, which is `worker.out` of the run. It holds up and fails nothing.
    """
    try:
        kept = json.loads(hooks or "{}")
        command, environment = kept.get(event), kept.get("environment", {})
    except (ValueError, AttributeError):
        return  # a process of the run has put something else there
    if not isinstance(command, list) or not command:
        return
    try:
        # It outlives this process, within its bound. Where the run works, `python -m NAME` or `git` in a hook
        # would execute what the run has put there.
        start_for_event(
            command, HOOK_SECONDS, environment, event, facts, with_starter=False, stdout=2, cwd="/"
        )
    except (OSError, ValueError, TypeError) as error:
        log(f"The hook {event} could not be started: {error}")


def fire_end(hooks: str | None, run: RunPaths) -> None:
    """Run the hooks for the end of a run; none, if its state has no end."""
    if not hooks:
        return
    state = durable.read_object(run.meta, STATE_BYTES)
    facts = {name: state[name] for name in _FACTS if state.get(name) is not None}
    facts["agent"] = state.get("agentName")
    if isinstance(error := state.get("error"), dict):
        facts["error"] = error.get("message")
    if state.get("completedAt") or state.get("stoppedAt"):
        fire(hooks, "onEnd", facts)
