"""The shim of a run: waits for its slots, starts its worker, and stays until the last process is gone.

Started as `python -I -S shim.py RUN_DIRECTORY LOCK_FD MEMORY_FD [ZYGOTES NAME]` in a session of its own, with
the run's `live.lock` already held for the shim, or forked from the zygote with the first three arguments.
Standard library only, because a shim lives as long as its run does. The order of the steps makes every kill
harmless (SPEC section 4, "The process"). They are numbered as in docs/architecture.md; `cleanup.py` has
those after the worker.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from subagent_server.process.beat import Heart
    from subagent_server.process.zygote_client import ForkConnection

if __name__ == "__main__":  # -I leaves out the directory of the package
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from subagent_server.process import cleanup, slots
from subagent_server.process.cleanup import conclude, recorded_status, state_has_ended
from subagent_server.process.marks import SHIM_FLAGS
from subagent_server.process.worker_process import Invocation, WorkerProgram, read_package
from subagent_server.run import durable, processes
from subagent_server.run.errors import StorageFailed
from subagent_server.run.files import Entry
from subagent_server.run.paths import RunPaths, run_at
from subagent_server.run.processes import NODE, DeadlineReader
from subagent_server.run.stderr import failpoint, flush, lack_of_room, log

GRACE_SECONDS = 10.0
"""Between TERM and KILL."""
EXIT_SECOND_SHIM = 75
HEAD_POLL_SECONDS = 0.03
ZYGOTE_SECONDS = 3.0
"""How long a zygote that was begun may take to listen: 0.3 s on two cores that others use, 1.2 s on slow
ones. Where none comes, as on a full disk, each start waits so long."""
_FORK_LOCK, _FORK_MEMORY = 3, 4
"""The descriptors of a forked shim."""
_STOPPING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
_WATCHED = _STOPPING | {signal.SIGCHLD, signal.SIGUSR1}


class Shim:
    """The supervisor of a run, from its claim to its release of the lock."""

    def __init__(self, run: RunPaths, lock: int, memory: int, program: WorkerProgram) -> None:
        self.run = run
        self.program = program
        self.lock = lock
        self.memory = memory
        self.package = read_package(memory)
        self.slots: list[int] = []
        self.deadline: float | None = None
        """When a worker that was asked to end is killed, on the monotonic clock; None before that."""
        self._worker: processes.Identity | None = None
        self._limit = DeadlineReader()
        self._why: dict[str, Any] = {}
        """Further fields of `exit.json`: `reason`, a sentence, of a worker that could not be started, `late`
        of one long after its deadline, `fenced` of one that was ended because the runs root could not be
        reached."""
        self.heart: Heart | None = None

    def supervise(self) -> int:
        """Live through the whole run and return the worker's exit code, for an engine to see."""
        try:
            if NODE in os.environ:  # readers on other hosts know of it by its heartbeat alone
                from subagent_server.process.beat import Heart

                self.heart = Heart(self.run)
            worker = self._begin()
        except (OSError, MemoryError, StorageFailed) as error:  # a disk, or a machine without room
            log(f"The worker could not be started: {error}")
            self._why["reason"] = lack_of_room(error) or str(error).rstrip(".") + "."
            worker = None
        # 10. Wait for its end.
        status = None if worker is None else self._wait_for(worker)
        # 11 to 17. The aftermath: exit.json, reconcile, sweep, treeGone, the lock, the mark.
        conclude(self.run, self.lock, status, self.deadline, self.program, self._why, self.heart)
        # 18. Run the user's hook, last: it can neither hold up nor fail anything.
        cleanup.fire_end(self.package["environment"].get(cleanup.VARIABLE), self.run)
        return 0 if status is None else os.waitstatus_to_exitcode(status) & 0xFF

    def _begin(self) -> int | None:
        """Return the pid of the worker that has begun, or None if the run was ended before."""
        failpoint("shim.claimed")
        # 3. Record this process, then read the state. A stop writes the state first and reads shim.json
        #    second: so one of the two sees the other.
        self._record()
        failpoint("shim.recorded")
        if state_has_ended(self.run):
            return None
        # 4. Wait until the run that this one continues has no process left.
        if not self._predecessor_is_gone():
            return None
        # 5. Take the slots, in line with others.
        if not self._take_slots():
            return None
        return self._start_worker()

    # -- before the worker

    def _predecessor_is_gone(self) -> bool:
        """Wait for the last process of the continued run; False if the new run was stopped."""
        after = self.package.get("after")
        if after is None:
            return True
        old = self.run.root.run(after)
        if not cleanup.is_gone(old):
            self._record(waiting_for=after)
            failpoint("shim.waiting_for_run")
        return cleanup.wait_until_gone(old, self._nap, self.program)

    def _nap(self, seconds: float) -> bool:
        """Sleep so long, or until something happens; False if this run is over before it has begun."""
        received = signal.sigtimedwait(_WATCHED, seconds)
        return not (received is not None and received.si_signo in _STOPPING) and not state_has_ended(self.run)

    def _record(self, *, waiting: bool = False, waiting_for: str | None = None) -> None:
        directory = os.fstat(self.run.files.descriptor)  # a copy, or a snapshot, owns no processes
        facts: dict[str, Any] = {
            "shim": processes.this_process().to_json(),
            "directory": directory.st_ino,
            "device": directory.st_dev,
            "waitingForSlot": waiting,
        }
        if waiting_for is not None:
            facts["waitingForRun"] = waiting_for
        if self._worker is not None:
            facts["worker"] = self._worker.to_json()
        durable.write_durably(self.run.shim, (json.dumps(facts, indent=1) + "\n").encode())

    def _take_slots(self) -> bool:
        """Take a slot of each name in turn; False if the run was stopped while it waited."""
        for name, limit in self.package["slots"].items():
            descriptor = self._take_slot(name, limit)
            if descriptor is None:
                return False
            self.slots.append(descriptor)
        return True

    def _take_slot(self, name: str, limit: int) -> int | None:
        folder = self.run.root.slots
        if slots.nobody_waits(folder, name) and (free := slots.try_take(folder, name, limit)) is not None:
            return free
        ticket = slots.Ticket(folder, name, self.run.run_id)
        self._record(waiting=True)
        failpoint("shim.waiting")
        try:
            return self._wait_in_line(ticket, name, limit)
        finally:
            ticket.leave()

    def _wait_in_line(self, ticket: slots.Ticket, name: str, limit: int) -> int | None:
        watched: Entry | None = None
        while not state_has_ended(self.run):
            before = ticket.before()
            if before is None:
                free = slots.try_take(self.run.root.slots, name, limit)
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
        """Start the worker behind its gate, record it, and open the gate. Return its pid."""
        failpoint("shim.has_slots")
        # 6. Become subreaper: orphans of the run come to this process, and cannot hide from the sweep.
        processes.adopt_orphans()
        # 7. Fork the worker. It waits at the gate, and exits if this process ends before the gate opens.
        environment = {**self.package["environment"], "SUBAGENT_RUN_ID": self.run.run_id}
        kept = (self.memory, *self.slots)
        arguments = [str(self.run.directory), ",".join(map(str, kept)), str(self._limit.writer)]
        invocation = Invocation(arguments, environment, (*kept, self._limit.writer), unblocked=_WATCHED)
        worker = self.program.start(invocation, own=[self.lock, self._limit.descriptor])
        failpoint("shim.forked")
        try:
            self._limit.begin(signal.SIGUSR1)
            for descriptor in self.slots:  # only the worker has them now: the kernel frees them with it
                os.close(descriptor)
            # 8. Record it: a worker that begins is always on record. Then read the state, as in step 3.
            self._worker = processes.identify(worker.pid)
            self._record()
            failpoint("shim.worker_recorded")
            if state_has_ended(self.run):
                self._signal_worker(signal.SIGTERM)
            # 9. Open the gate, unless this process hung so long that readers may have called the run lost.
            if not self._is_fenced():
                worker.let_begin()
        finally:
            worker.close_gate()
        return worker.pid

    def _wait_for(self, worker: int) -> int:
        while True:
            ended = processes.reap_children()
            if worker in ended:
                self._is_fenced()
                if self.deadline is None and recorded_status(self.run) == "stopped":
                    # The worker has seen the stop before this process gets the signal.
                    self.deadline = time.monotonic() + GRACE_SECONDS
                return ended[worker]
            if self._is_fenced():
                self._signal_worker(signal.SIGKILL)
            received = signal.sigtimedwait(_WATCHED, self._patience())
            if received is not None and received.si_signo in _STOPPING and self.deadline is None:
                self._signal_worker(signal.SIGTERM)
            elif self.deadline is None and self._limit.seconds_left() <= 0:
                self._why["late"] = True
                self._signal_worker(signal.SIGTERM)
            elif self.deadline is not None and time.monotonic() >= self.deadline:
                self._signal_worker(signal.SIGKILL)

    def _is_fenced(self) -> bool:
        """Whether the heartbeat could not be kept up, so that everything below this process was killed."""
        if self.heart is not None and self.heart.has_stopped:
            self._why["fenced"] = True
        return "fenced" in self._why

    def _signal_worker(self, number: int) -> None:
        """Send the worker a signal; the first one starts the grace."""
        if self.deadline is None:
            self.deadline = time.monotonic() + GRACE_SECONDS
        if self._worker is not None:
            processes.send_signal(self._worker, number)

    def _patience(self) -> float:
        if self.deadline is None:
            return min(3600.0, max(0.05, self._limit.seconds_left()))
        return max(0.05, self.deadline - time.monotonic())


def shim_command(directory: str, lock: int, memory: int) -> list[str]:
    """Return the command line of a shim."""
    return [sys.executable, *SHIM_FLAGS, str(Path(__file__).resolve()), directory, str(lock), str(memory)]


def order_fork(
    connection: "ForkConnection",
    directory: str,
    lock: int,
    memory: int,
    streams: tuple[int, int, int],
    environment: Mapping[str, str],
) -> None:
    """Order a fork of the zygote as the shim of a run. Raises what `ForkConnection.order` does."""
    command = shim_command(directory, _FORK_LOCK, _FORK_MEMORY)
    descriptors = {**dict(enumerate(streams)), _FORK_LOCK: lock, _FORK_MEMORY: memory}
    connection.order("shim", command, command[-3:], environment, descriptors)


def _is_handed_on(directory: str, lock: str, memory: str, zygotes: str, name: str) -> bool:
    """Let a fork of the zygote be the shim, once the zygote has time. False: this process is the shim.

    A server that has just begun starts runs faster than its zygote gets ready, and hundreds at once faster
    than it forks. A plain worker takes as much of the processor as the zygote: a few of them would keep it,
    and the server, from getting on. To wait here costs nothing, and the starter has answered. Nothing is
    claimed yet: the fork begins, or this process continues.
    """
    deadline = time.monotonic() + ZYGOTE_SECONDS
    while not any(os.path.lexists(f"{zygotes}/{name}.{state}") for state in ("loading", "sock")):
        if time.monotonic() >= deadline:
            return False
        signal.sigtimedwait((), 0.02)
    # Only here: it would stay in the memory of a shim for as long as its run lives.
    from subagent_server.process.zygote_client import FAILURES, ForkConnection

    try:
        with closing(ForkConnection(Path(zygotes), name, is_patient=True)) as connection:
            order_fork(connection, directory, int(lock), int(memory), (0, 1, 2), os.environ)
            connection.go()
    except FAILURES:
        return False
    return True


def main(arguments: list[str], program: WorkerProgram | None = None) -> int:
    """Supervise the run of the command line; `program` starts its worker."""
    processes.keep_others_out()
    if len(arguments) > 3 and _is_handed_on(*arguments):
        return 0
    processes.forbid_core_dumps()
    # 1. Undo what the starter ignored, and block the signals: `sigtimedwait` alone receives them.
    processes.restore_defaults()
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    run = run_at(Path(arguments[0]))
    lock, memory = int(arguments[1]), int(arguments[2])
    for descriptor in (lock, memory):
        os.set_inheritable(descriptor, False)
    # 2. Claim the run: one shim for each run, for good.
    try:
        claim = run.shim_claim.open(os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        return EXIT_SECOND_SHIM
    os.close(claim)  # its name is durable with shim.json's, and nothing begins before that
    return Shim(run, lock, memory, program or WorkerProgram()).supervise()


if __name__ == "__main__":
    code = main(sys.argv[1:])
    flush()
    os._exit(code)  # the run is over: its shim does not outlive it by the time that Python takes to exit
