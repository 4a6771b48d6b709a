"""The keeper of one run: waits for its slots, starts its worker, and stays until its last process is gone.

Started as `python -I -S shim.py RUN_DIRECTORY LOCK_FD MEMORY_FD` in a session of its own, with the run's
`live.lock` already held for it. Standard library only, because one of these lives as long as each run does.
The order of the steps is what makes every kill harmless (SPEC section 4, "The process"):

claim, shim.json, read the status, slots, fork behind a gate, shim.json with the worker, open the gate, wait,
exit.json, reconcile, sweep the tree, treeGone, and only then the lock falls.
"""

import ctypes
import json
import os
import signal
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

if __name__ == "__main__":  # -I leaves out the directory of the package
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from subagent_server.domain.errors import StorageFailed
from subagent_server.domain.states import TERMINAL
from subagent_server.host import atomic, die, locks, processes
from subagent_server.launch import slots
from subagent_server.store.paths import RootPaths, RunPaths, root_of

GRACE_SECONDS = 10.0
"""How long TERM is left to work before KILL."""
LEFTOVER_GRACE_SECONDS = 2.0
"""The same for what a worker that ended by itself has left behind."""
RECONCILE_SECONDS = 30.0
RECONCILE_ATTEMPTS = 3
EXIT_SECOND_SHIM = 75
EXIT_GATE_CLOSED = 71
HEAD_POLL_SECONDS = 0.03
_PR_SET_CHILD_SUBREAPER = 36
_SPARED = "SUBAGENT_SHIM"
_WORKER = (sys.executable, "-E", "-P", "-m", "subagent_server.worker")
"""No PYTHON* variable and no file in the working directory may change what the worker imports."""
_STOPPING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
_WATCHED = _STOPPING | {signal.SIGCHLD, signal.SIGUSR1}


class Shim:
    """One run's keeper, from its claim to the fall of its lock."""

    def __init__(self, run: RunPaths, lock: int, memory: int) -> None:
        self.run = run
        self.root: RootPaths = root_of(run)
        self.lock = lock
        self.memory = memory
        self.package = _read_package(memory)
        self.slots: list[int] = []
        self.deadline: float | None = None
        """When what was told to end is killed, on the monotonic clock; None while nobody wants an end."""
        self._worker: processes.Identity | None = None

    def keep(self) -> int:
        """Live through the whole run and return the worker's exit code, for an engine to see."""
        try:
            worker = self._begin()
        except (OSError, StorageFailed) as error:  # a disk, or a machine without room for one process more
            print(f"The worker could not be started: {error}", file=sys.stderr, flush=True)
            worker = None
        status = None if worker is None else self._wait_for(worker)
        self._finish(status)
        return 0 if status is None else os.waitstatus_to_exitcode(status) & 0xFF

    def _begin(self) -> int | None:
        """Return the pid of the worker that has begun, or None where the run was ended before."""
        die.may_die("shim.claimed")
        self._record()
        die.may_die("shim.recorded")
        if self._is_over() or not self._take_slots():
            return None
        return self._start_worker()

    # -- before the worker

    def _record(self, *, waiting: bool = False) -> None:
        facts: dict[str, Any] = {
            "shim": processes.this_process().to_json(),
            "directory": self.run.directory.stat().st_ino,  # a copy of it owns none of its processes
            "waitingForSlot": waiting,
        }
        if self._worker is not None:
            facts["worker"] = self._worker.to_json()
        atomic.write_durably(self.run.shim, _encoded(facts))

    def _is_over(self) -> bool:
        """Whether the run has ended meanwhile. Who stops a run writes first and reads shim.json second."""
        try:
            return json.loads(self.run.meta.read_bytes()).get("status") in TERMINAL
        except (OSError, ValueError):
            return False

    def _take_slots(self) -> bool:
        """Take a slot of each name in turn; False where the run was stopped while it waited."""
        for name, limit in self.package["slots"].items():
            descriptor = self._take_slot(name, limit)
            if descriptor is None:
                return False
            self.slots.append(descriptor)
        return True

    def _take_slot(self, name: str, limit: int) -> int | None:
        folder = self.root.slots
        if slots.nobody_waits(folder, name) and (free := slots.try_take(folder, name, limit)) is not None:
            return free
        ticket = slots.Ticket(folder, name, self.run.run_id)
        self._record(waiting=True)
        die.may_die("shim.waiting")
        try:
            return self._wait_in_line(ticket, name, limit)
        finally:
            ticket.leave()

    def _wait_in_line(self, ticket: slots.Ticket, name: str, limit: int) -> int | None:
        watched: Path | None = None
        while not self._is_over():
            before = ticket.before()
            if before is None:
                free = slots.try_take(self.root.slots, name, limit)
                if free is not None:
                    return free
            elif before != watched:
                watched = before
                threading.Thread(target=_tell_when_free, args=(before,), daemon=True).start()
            received = signal.sigtimedwait(_WATCHED, HEAD_POLL_SECONDS if before is None else 1.0)
            if received is not None and received.si_signo in _STOPPING:
                return None
        return None

    # -- the worker

    def _start_worker(self) -> int:
        """Start the worker behind its gate, record it, and open the gate; without that word it leaves."""
        die.may_die("shim.has_slots")
        _become_subreaper()
        gate_out, gate_in = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(gate_in)
            self._become_worker(gate_out)
        os.close(gate_out)
        for descriptor in self.slots:  # the worker has them: the kernel frees them with it
            os.close(descriptor)
        die.may_die("shim.forked")
        try:
            self._worker = processes.identify(pid)
            self._record()
            die.may_die("shim.worker_recorded")
            if self._is_over():
                self._tell(signal.SIGTERM)
            os.write(gate_in, b"!")
        finally:
            os.close(gate_in)
        return pid

    def _become_worker(self, gate: int) -> NoReturn:
        """In the child: let go of what is the shim's, wait for the gate, become the worker."""
        try:
            os.close(self.lock)
            os.setsid()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
            if os.read(gate, 1) != b"!":
                os._exit(EXIT_GATE_CLOSED)
            os.close(gate)
            for descriptor in (*self.slots, self.memory):
                os.set_inheritable(descriptor, True)
            environment = {**self.package["environment"], "SUBAGENT_RUN_ID": self.run.run_id}
            descriptors = ",".join(map(str, (self.memory, *self.slots)))
            command = [*_WORKER, str(self.run.directory), descriptors]
            os.execve(command[0], command, environment)
        except OSError as error:
            print(f"The worker could not be started: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(EXIT_GATE_CLOSED)

    def _wait_for(self, worker: int) -> int:
        while True:
            ended = processes.reap_children()
            if worker in ended:
                return ended[worker]
            received = signal.sigtimedwait(_WATCHED, self._patience())
            if received is not None and received.si_signo in _STOPPING and self.deadline is None:
                self._tell(signal.SIGTERM)
            elif self._is_overdue():
                self._tell(signal.SIGKILL)

    def _tell(self, number: int) -> None:
        """Send the worker a signal; the first TERM starts the grace."""
        if self.deadline is None:
            self.deadline = time.monotonic() + GRACE_SECONDS
        if self._worker is not None:
            processes.send_signal(self._worker, number)

    def _is_overdue(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline

    def _patience(self) -> float:
        return 3600.0 if self.deadline is None else max(0.05, self.deadline - time.monotonic())

    # -- after the worker

    def _finish(self, status: int | None) -> None:
        """Say how it ended, end what is left, and let go. Where the end could not be told, the tree is not
        recorded as gone: the first reader, who finds the lock free, does the rest.
        """
        facts = _exit_facts(status)
        die.may_die("shim.reaped")
        self._write_exit(facts)
        die.may_die("shim.exit_written")
        told = (status == 0 and self._is_over()) or self._reconcile()
        die.may_die("shim.reconciled")
        self._sweep()
        die.may_die("shim.swept")
        atomic.remove_leftovers(self.run.directory)
        if told:
            self._write_exit({**facts, "treeGone": True})
            die.may_die("shim.tree_gone")
        locks.give_back(self.lock)  # nobody else has it any more, and who hears of the next line looks at it
        if told:
            self.root.change_mark(self.run.run_id).unlink(missing_ok=True)

    def _write_exit(self, facts: dict[str, Any]) -> None:
        """A disk that refuses must not keep the tree alive: readers find out by the lock, only later."""
        try:
            atomic.write_durably(self.run.exit, _encoded(facts))
        except StorageFailed as error:
            print(error.sentence, file=sys.stderr, flush=True)

    def _reconcile(self) -> bool:
        """Make the meta file and the journal true for those who only read them; False where it failed."""
        return any(self._reconciled_at_once() for _ in range(RECONCILE_ATTEMPTS))

    def _reconciled_at_once(self) -> bool:
        """Let a full interpreter do it, with a bound; it may be killed as everything may."""
        command = [*_WORKER, "--reconcile", str(self.run.directory)]
        pid = os.posix_spawn(command[0], command, os.environ, setsigmask=[])
        deadline = time.monotonic() + RECONCILE_SECONDS
        while pid not in (ended := processes.reap_children()):
            if time.monotonic() >= deadline:
                os.kill(pid, signal.SIGKILL)
            signal.sigtimedwait({signal.SIGCHLD}, 0.5)
        return ended[pid] == 0

    def _sweep(self) -> None:
        """End all that the run has left behind, until two looks find nothing; other runs are spared."""
        deadline = self.deadline or time.monotonic() + LEFTOVER_GRACE_SECONDS
        told: set[processes.Identity] = set()
        quiet = 0
        while quiet < 2:
            processes.reap_children()
            left = self._left_behind()
            quiet = 0 if left else quiet + 1
            number = signal.SIGKILL if time.monotonic() >= deadline else signal.SIGTERM
            for identity in left:
                if number == signal.SIGKILL or identity not in told:
                    processes.send_signal(identity, number)
                    told.add(identity)
            if left:
                signal.sigtimedwait({signal.SIGCHLD}, 0.05)

    def _left_behind(self) -> list[processes.Identity]:
        """Return what is below this process (it is the subreaper) and what carries the mark of the run."""
        below = processes.descendants([os.getpid()], spare=_SPARED)
        return list({*below, *processes.marked(f"SUBAGENT_RUN_ID={self.run.run_id}")})


def _read_package(memory: int) -> dict[str, Any]:
    size = os.fstat(memory).st_size
    data = b""
    while len(data) < size:
        data += os.pread(memory, size - len(data), len(data))
    package: dict[str, Any] = json.loads(data.decode("utf-8", "surrogateescape"))
    return package


def _encoded(facts: dict[str, Any]) -> bytes:
    return (json.dumps(facts, indent=1) + "\n").encode()


def _exit_facts(status: int | None) -> dict[str, Any]:
    at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    code = EXIT_GATE_CLOSED if status is None else os.waitstatus_to_exitcode(status)
    if code == EXIT_GATE_CLOSED:
        return {"at": at, "workerStarted": False}
    return {"at": at, "workerStarted": True, **({"signal": -code} if code < 0 else {"exitCode": code})}


def _become_subreaper() -> None:
    """Have orphans of the run's tree handed to this process (prctl(2)); elsewhere than Linux, do without."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _tell_when_free(ticket: Path) -> None:
    locks.wait_until_free(ticket)
    os.kill(os.getpid(), signal.SIGUSR1)


def main(arguments: list[str]) -> int:
    """Keep the run named on the command line."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    run = RunPaths(Path(arguments[0]))
    lock, memory = int(arguments[1]), int(arguments[2])
    for descriptor in (lock, memory):
        os.set_inheritable(descriptor, False)
    try:
        claim = os.open(run.shim_claim, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return EXIT_SECOND_SHIM
    os.fsync(claim)
    os.close(claim)
    return Shim(run, lock, memory).keep()


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)  # the run is over: nothing of it shall outlive that by the time Python takes to leave
