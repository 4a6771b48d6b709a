"""The keeper of one run: waits for its slots, starts its worker, and stays until its last process is gone.

Started as `python -I -S shim.py RUN_DIRECTORY LOCK_FD MEMORY_FD` in a session of its own, with the run's
`live.lock` already held for it. Standard library only, because one of these lives as long as each run does.
The order of the steps is what makes every kill harmless (SPEC section 4, "The process"):

claim, shim.json, read the status, the end of the run that this one carries on, slots, fork behind a gate,
shim.json with the worker, open the gate, wait, exit.json, reconcile, sweep the tree, treeGone, and only then
the lock falls. Where the worker is there already and nothing is to be waited for, one shim.json names both,
and the status is read after that.
"""

import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # -I leaves out the directory of the package
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from subagent_server.domain.errors import StorageFailed
from subagent_server.host import atomic, dumpable, pristine, process_scan, processes
from subagent_server.host.directory import Entry
from subagent_server.host.failpoints import failpoint
from subagent_server.host.stderr import flush, log
from subagent_server.launch import predecessor, slots
from subagent_server.launch.aftermath import conclude, has_ended
from subagent_server.launch.program import GatedWorker, Invocation, Program
from subagent_server.store.paths import RootPaths, RunPaths, run_at

GRACE_SECONDS = 10.0
"""How long TERM is left to work before KILL."""
EXIT_SECOND_SHIM = 75
HEAD_POLL_SECONDS = 0.03
_prctl = getattr(ctypes.CDLL(None), "prctl", None)
_PR_SET_CHILD_SUBREAPER = 36
_STOPPING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
_WATCHED = _STOPPING | {signal.SIGCHLD, signal.SIGUSR1}


class Shim:
    """One run's keeper, from its claim to the fall of its lock."""

    def __init__(self, run: RunPaths, lock: int, memory: int, program: Program) -> None:
        self.run = run
        self.program = program
        self.root: RootPaths = run.root
        self.lock = lock
        self.memory = memory
        self.package = _read_package(memory)
        self.slots: list[int] = []
        self.deadline: float | None = None
        """When what was told to end is killed, on the monotonic clock; None while nobody wants an end."""
        self._worker: processes.Identity | None = None
        self._rests = False

    def keep(self) -> int:
        """Live through the whole run and return the worker's exit code, for an engine to see."""
        try:
            worker = self._begin()
        except (OSError, StorageFailed) as error:  # a disk, or a machine without room for one process more
            log(f"The worker could not be started: {error}")
            worker = None
        self.program.rest()
        status = None if worker is None else self._wait_for(worker)
        conclude(self.run, self.lock, status, self.deadline, self.program)
        return 0 if status is None else os.waitstatus_to_exitcode(status) & 0xFF

    def _begin(self) -> int | None:
        """Return the pid of the worker that has begun, or None where the run was ended before."""
        failpoint("shim.claimed")
        if not self._can_begin_at_once():
            self._record()
            failpoint("shim.recorded")
            # Whoever stops a run writes first and reads shim.json second: one of the two sees the other.
            if has_ended(self.run) or not self._predecessor_is_gone() or not self._take_slots():
                return None
        return self._start_worker()

    # -- before the worker

    def _can_begin_at_once(self) -> bool:
        """Whether a worker is there already, and nothing to wait for: the first record names it then."""
        if not self.program.is_there or self.package.get("after") is not None:
            return False
        for name, limit in self.package["slots"].items():
            free = self._free_slot(name, limit)
            if free is None:
                return False
            self.slots.append(free)
        return True

    def _predecessor_is_gone(self) -> bool:
        """Wait for the last process of the run that this one carries on; False where this one was stopped."""
        after = self.package.get("after")
        if after is None:
            return True
        old = self.root.run(after)
        if not predecessor.is_gone(old):
            self.program.rest()
            self._record(waiting_for=after)
            failpoint("shim.waiting_for_run")
        return predecessor.wait_until_gone(old, self._nap, self.program)

    def _nap(self, seconds: float) -> bool:
        """Sleep so long, or until something happens; False where this run is over before it has begun."""
        received = signal.sigtimedwait(_WATCHED, seconds)
        return not (received is not None and received.si_signo in _STOPPING) and not has_ended(self.run)

    def _record(self, *, waiting: bool = False, waiting_for: str | None = None) -> None:
        facts: dict[str, Any] = {
            "shim": processes.this_process().to_json(),
            "directory": os.fstat(
                self.run.files.descriptor
            ).st_ino,  # a copy of it owns none of its processes
            "waitingForSlot": waiting,
        }
        if waiting_for is not None:
            facts["waitingForRun"] = waiting_for
        if self._worker is not None:
            facts["worker"] = self._worker.to_json()
        atomic.write_durably(self.run.shim, (json.dumps(facts, indent=1) + "\n").encode())

    def _take_slots(self) -> bool:
        """Take a slot of each name in turn; False where the run was stopped while it waited."""
        for name, limit in list(self.package["slots"].items())[len(self.slots) :]:
            descriptor = self._take_slot(name, limit)
            if descriptor is None:
                return False
            self.slots.append(descriptor)
        return True

    def _free_slot(self, name: str, limit: int) -> int | None:
        folder = self.root.slots
        return slots.try_take(folder, name, limit) if slots.nobody_waits(folder, name) else None

    def _take_slot(self, name: str, limit: int) -> int | None:
        if (free := self._free_slot(name, limit)) is not None:
            return free
        self.program.rest()
        ticket = slots.Ticket(self.root.slots, name, self.run.run_id)
        self._record(waiting=True)
        failpoint("shim.waiting")
        try:
            return self._wait_in_line(ticket, name, limit)
        finally:
            ticket.leave()

    def _wait_in_line(self, ticket: slots.Ticket, name: str, limit: int) -> int | None:
        watched: Entry | None = None
        while not has_ended(self.run):
            before = ticket.before()
            if before is None:
                free = slots.try_take(self.root.slots, name, limit)
                if free is not None:
                    return free
            elif before != watched:
                watched = before
                slots.signal_when_free(before)
            if not self._nap(HEAD_POLL_SECONDS if before is None else 1.0):
                return None
        return None

    # -- the worker

    def _start_worker(self) -> int:
        """Start the worker behind its gate, record it, and open the gate; without that word it leaves."""
        failpoint("shim.has_slots")
        _become_subreaper()
        environment = {**self.package["environment"], "SUBAGENT_RUN_ID": self.run.run_id}
        kept = (self.memory, *self.slots)
        arguments = [str(self.run.directory), ",".join(map(str, kept))]
        invocation = Invocation(arguments, environment, kept, heard=_WATCHED)
        worker = self._recorded(invocation)
        try:
            if not worker.is_ready():  # it is gone: another one is made, which needs nothing to be there
                worker = self._recorded(invocation)
            for descriptor in self.slots:  # the worker has them: the kernel frees them with it
                os.close(descriptor)
            if has_ended(self.run):
                self._send(signal.SIGTERM)
            worker.let_begin()
        finally:
            worker.close_gate()
        process_scan.set_apart(0)
        return worker.pid

    def _recorded(self, invocation: Invocation) -> GatedWorker:
        """Start a worker behind its gate, and record it while it gets ready."""
        worker = self.program.start(invocation, own=[self.lock])
        failpoint("shim.forked")
        try:
            self._worker = processes.identify(worker.pid)
            self._record()
            failpoint("shim.worker_recorded")
        except BaseException:
            worker.close_gate()
            raise
        return worker

    def _wait_for(self, worker: int) -> int:
        while True:
            ended = processes.reap_children()
            if worker in ended:
                return ended[worker]
            received = signal.sigtimedwait(_WATCHED, self._patience())
            if received is not None and received.si_signo in _STOPPING and self.deadline is None:
                self._send(signal.SIGTERM)
            elif self._is_overdue():
                self._send(signal.SIGKILL)
            elif received is None and not self._rests:
                self._rests = True
                pristine.give_back()

    def _send(self, number: int) -> None:
        """Send the worker a signal; the first TERM starts the grace."""
        if self.deadline is None:
            self.deadline = time.monotonic() + GRACE_SECONDS
        if self._worker is not None:
            processes.send_signal(self._worker, number)

    def _is_overdue(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline

    def _patience(self) -> float:
        if self.deadline is None:
            return 3600.0 if self._rests else pristine.REST_SECONDS
        return max(0.05, self.deadline - time.monotonic())


def _read_package(memory: int) -> dict[str, Any]:
    size = os.fstat(memory).st_size
    data = b""
    while len(data) < size:
        data += os.pread(memory, size - len(data), len(data))
    package: dict[str, Any] = json.loads(data.decode("utf-8", "surrogateescape"))
    return package


def _become_subreaper() -> None:
    """Have orphans of the run's tree handed to this process (prctl(2)); elsewhere than Linux, do without."""
    if _prctl is not None:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def main(arguments: list[str], program: Program | None = None) -> int:
    """Keep the run named on the command line; `program` is how its worker is started."""
    dumpable.keep_others_out()
    dumpable.forbid_core_dumps()
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    run = run_at(Path(arguments[0]))
    lock, memory = int(arguments[1]), int(arguments[2])
    for descriptor in (lock, memory):
        os.set_inheritable(descriptor, False)
    try:
        claim = run.shim_claim.open(os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        return EXIT_SECOND_SHIM
    os.close(claim)  # its name is durable with shim.json's, and nothing begins before that
    return Shim(run, lock, memory, program or Program()).keep()


if __name__ == "__main__":
    code = main(sys.argv[1:])
    flush()
    os._exit(code)  # the run is over: nothing of it shall outlive that by the time Python takes to leave
