"""Slots admit runs to work: lock files, which the kernel frees however their holder dies.

A slot of `name` is any of the files `name.0`, `name.1`, ...; the run holding its lock works. Waiting runs
hold tickets in the order of their run ids. Each sleeps on the lock of the ticket before its own, and only the
first looks for a free slot. Standard library only: the shim imports this module.
"""

import os
import signal
import threading
from contextlib import suppress

from subagent_server.run import locks
from subagent_server.run.files import Directory, Entry, NotPlain, held_open


class Ticket:
    """A position in the queue of one slot name, held by its lock; a ticket whose lock is free is removed."""

    def __init__(self, slots: Directory, name: str, run_id: str) -> None:
        self._queue = slots.below(f"{name}.queue")
        self._queue.make()
        self._file = self._queue.entry(run_id)
        self._descriptor = self._held()

    def _held(self) -> int:
        while True:
            descriptor = locks.open_lock(self._file)
            locks.lock(descriptor)
            # Between making and locking it another run may have taken it for a dead one and removed it. The
            # name shows it: after a removal by another host, the file may still count a name here (NFS).
            if self._is_named(descriptor):
                return descriptor
            os.close(descriptor)

    def _is_named(self, descriptor: int) -> bool:
        with suppress(OSError), held_open(self._file.open()) as named:
            return os.path.samestat(os.fstat(named), os.fstat(descriptor))
        return False

    def before(self) -> Entry | None:
        """Return the nearest earlier ticket that is held, or None at the head of the queue."""
        for name in sorted((name for name in self._queue.names() if name < self._file.name), reverse=True):
            ticket = self._queue.entry(name)
            if _is_held(ticket):
                return ticket
            with suppress(OSError):  # an entry that is not a ticket stays: it holds up no run
                ticket.unlink()
        return None

    def leave(self) -> None:
        """Leave the queue, also if its turn has come."""
        self._file.unlink()
        os.close(self._descriptor)


def try_take(slots: Directory, name: str, limit: int) -> int | None:
    """Return the descriptor of a free slot, locked, or None if all `limit` are held."""
    for number in range(limit):
        try:
            descriptor = locks.take(slots.entry(f"{name}.{number}"))
        except NotPlain:
            continue  # it is not a lock file, so no run can hold it
        if descriptor is not None:
            return descriptor
    return None


def nobody_waits(slots: Directory, name: str) -> bool:
    """Whether no run waits in the queue, so that a free slot may be taken at once."""
    queue = slots.below(f"{name}.queue")
    try:
        return not any(_is_held(queue.entry(ticket)) for ticket in queue.names())
    except OSError:  # the queue is missing, or is not a directory
        return True


def signal_when_free(file: Entry) -> None:
    """Send this process SIGUSR1 once the lock of `file` is free, from a waiting thread.

    A caller looks by itself too, if seldom: without room for a thread it waits all the same.
    """
    with suppress(RuntimeError):
        threading.Thread(target=_signal_when_free, args=(file,), daemon=True).start()


def _signal_when_free(file: Entry) -> None:
    locks.wait_until_free(file)
    os.kill(os.getpid(), signal.SIGUSR1)


def is_waiting(slots: Directory, run_id: str) -> bool:
    """Whether the run waits in a queue."""
    try:
        queues = [slots.below(name) for name in slots.names() if name.endswith(".queue")]
    except OSError:
        return False
    return any(_is_held(queue.entry(run_id)) for queue in queues)


def _is_held(ticket: Entry) -> bool:
    """Whether a ticket is held; an entry that is not a plain file in a directory never is."""
    try:
        return locks.is_held(ticket)
    except OSError:
        return False
