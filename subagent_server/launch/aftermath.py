"""What a run's keeper does once the worker has ended, or never was: tell it, end what is left, let go.

exit.json, reconcile, sweep the tree, treeGone, the lock, the mark: in this order, so that a kill in between
leaves a run that the next reader can put right. Standard library only: the shim imports this module.
"""

import json
import os
import signal
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from subagent_server.domain.errors import StorageFailed
from subagent_server.domain.states import TERMINAL
from subagent_server.host import atomic, locks, process_scan, processes
from subagent_server.host.failpoints import failpoint
from subagent_server.host.stderr import log
from subagent_server.launch import marks
from subagent_server.launch.program import EXIT_GATE_CLOSED, Program
from subagent_server.store.paths import STATE_BYTES, RunPaths

LEFTOVER_GRACE_SECONDS = 2.0
"""How long what a worker that ended by itself has left behind gets between TERM and KILL."""
RECONCILE_SECONDS = 30.0
RECONCILE_PAUSES = (0.0, 1.0, 4.0)
"""Before each attempt, where the one before it has failed by itself: what it lacks may come back, such as a
file of ours while another version is being installed."""
_NOT_STARTED = 1 << 8
"""The wait status that stands for a process that could not be started: as one that exits with 1."""


def has_ended(run: RunPaths) -> bool:
    """Whether the state on disk says that the run has ended; a state that cannot be read says nothing."""
    try:
        state = json.loads(run.meta.read(STATE_BYTES))
    except (OSError, ValueError):
        return False
    return isinstance(state, dict) and state.get("status") in TERMINAL


def conclude(run: RunPaths, lock: int, status: int | None, deadline: float | None, program: Program) -> None:
    """Say how the run ended, end what is left of it, and let go of `lock`.

    `status` is the worker's wait status, None where there was none; `deadline` is when what was told to end
    is killed, on the monotonic clock; `program` is what writes the end into the state. Where the end could
    not be told, the tree is not recorded as gone: the first reader, who finds the lock free, does the rest.
    """
    facts = _exit_facts(status)
    failpoint("shim.reaped")
    _write_exit(run, facts)
    failpoint("shim.exit_written")
    told = (status == 0 and has_ended(run)) or _reconcile(run, facts, program)
    failpoint("shim.reconciled")
    _sweep(run, deadline or time.monotonic() + LEFTOVER_GRACE_SECONDS)
    failpoint("shim.swept")
    atomic.remove_leftovers(run.files)
    if told:
        _write_exit(run, {**facts, "treeGone": True})
        failpoint("shim.tree_gone")
    locks.give_back(lock)  # nobody else has it any more, and who hears of the next line looks at it
    if told:
        with suppress(OSError):
            run.spare.unlink()
            run.root.change_mark(run.run_id).unlink()


def _exit_facts(status: int | None) -> dict[str, Any]:
    at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    code = EXIT_GATE_CLOSED if status is None else os.waitstatus_to_exitcode(status)
    if code == EXIT_GATE_CLOSED:
        return {"at": at, "workerStarted": False}
    return {"at": at, "workerStarted": True, **({"signal": -code} if code < 0 else {"exitCode": code})}


def _write_exit(run: RunPaths, facts: dict[str, Any]) -> None:
    """A disk that refuses must not keep the tree alive: readers find out by the lock, only later."""
    try:
        atomic.write_durably(run.exit, (json.dumps(facts, indent=1) + "\n").encode())
    except StorageFailed as error:
        log(error.sentence)


def _reconcile(run: RunPaths, facts: dict[str, Any], program: Program) -> bool:
    """Make the meta file and the journal true for those who only read them; False where it failed.

    `facts` go with it, because the disk may have refused `exit.json`.
    """
    status = 0
    for pause in RECONCILE_PAUSES:
        if not os.WIFSIGNALED(status):
            signal.sigtimedwait((), pause)
        status = _status_of(run, program, "--reconcile", json.dumps(facts))
        if status == 0:
            return True
    return False


def told_by_worker(run: RunPaths, program: Program, verb: str, *more: str) -> bool:
    """Let a process of its own do `verb`, with a bound; it may be killed as everything may. False: it failed.

    The verb is `--reconcile` or `--settle` of the worker's program.
    """
    return _status_of(run, program, verb, *more) == 0


def _status_of(run: RunPaths, program: Program, verb: str, *more: str) -> int:
    """Return the wait status of the process that does `verb`."""
    try:
        pid = program.spawn([verb, str(run.directory), *more])
    except OSError as error:
        log(f"The end of the run could not be told: {error}")
        return _NOT_STARTED
    deadline = time.monotonic() + RECONCILE_SECONDS
    while pid not in (ended := processes.reap_children()):
        if time.monotonic() >= deadline:
            os.kill(pid, signal.SIGKILL)
        signal.sigtimedwait({signal.SIGCHLD}, 0.5)
    return ended[pid]


def _sweep(run: RunPaths, deadline: float) -> None:
    """End all that the run has left behind, until two looks find nothing; other runs are spared.

    That is what is below this process, whatever it says of itself, and what carries the mark of the run.
    """
    told: set[processes.Identity] = set()
    marked = marks.marked(run.run_id, among_others=True)
    is_spared = marks.shims_on_record(run.root)
    quiet = 0
    while quiet < 2:
        processes.reap_children()
        below = process_scan.descendants([os.getpid()], spare=is_spared)  # it is the subreaper
        left = list({*below, *marked.look()})
        quiet = 0 if left else quiet + 1
        number = signal.SIGKILL if time.monotonic() >= deadline else signal.SIGTERM
        for identity in left:
            if number == signal.SIGKILL or identity not in told:
                processes.send_signal(identity, number)
                told.add(identity)
        if left:
            signal.sigtimedwait({signal.SIGCHLD}, 0.05)
            marked = marks.marked(run.run_id, among_others=True)
