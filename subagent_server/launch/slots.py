"""Who may work now: lock files that the kernel gives back whatever kills their holder.

A slot of `name` is one of the files `name.0`, `name.1`, ...; whoever holds its lock works. Those who wait
stand in a chain of tickets in the order of their run ids. Each sleeps on the lock of the one before it, and
only the head looks for a free slot. Standard library only: the shim imports this module.
"""

import os
import signal
import threading
from pathlib import Path

from subagent_server.host import locks


class Ticket:
    """A place in the queue of one slot name. Held by its lock; a ticket that nobody holds is removed."""

    def __init__(self, slots: Path, name: str, run_id: str) -> None:
        self._queue = slots / f"{name}.queue"
        self._queue.mkdir(parents=True, exist_ok=True)
        self._path = self._queue / run_id
        self._descriptor = self._held()

    def _held(self) -> int:
        while True:
            descriptor = locks.open_lock(self._path)
            locks.lock(descriptor)
            # Between making and locking it somebody may have taken it for a dead one and removed it.
            if os.fstat(descriptor).st_nlink:
                return descriptor
            os.close(descriptor)

    def before(self) -> Path | None:
        """Return the nearest earlier ticket that is held, or None at the head of the queue."""
        earlier = sorted((e.name for e in os.scandir(self._queue) if e.name < self._path.name), reverse=True)
        for name in earlier:
            path = self._queue / name
            if locks.is_held(path):
                return path
            path.unlink(missing_ok=True)
        return None

    def leave(self) -> None:
        """Give up the place, or the turn that has come."""
        self._path.unlink(missing_ok=True)
        os.close(self._descriptor)


def try_take(slots: Path, name: str, limit: int) -> int | None:
    """Return the descriptor of a free slot, locked, or None where all `limit` are held."""
    for number in range(limit):
        descriptor = locks.take(slots / f"{name}.{number}")
        if descriptor is not None:
            return descriptor
    return None


def nobody_waits(slots: Path, name: str) -> bool:
    """Whether no run stands in the queue, so that a free slot may be taken at once."""
    queue = slots / f"{name}.queue"
    try:
        return not any(locks.is_held(Path(entry.path)) for entry in os.scandir(queue))
    except FileNotFoundError:
        return True


def signal_when_free(path: Path) -> None:
    """Send this process SIGUSR1 once nobody holds the lock of `path`, from a thread that waits for it."""
    threading.Thread(target=_signal_when_free, args=(path,), daemon=True).start()


def _signal_when_free(path: Path) -> None:
    locks.wait_until_free(path)
    os.kill(os.getpid(), signal.SIGUSR1)


def is_waiting(slots: Path, run_id: str) -> bool:
    """Whether the run stands in a queue."""
    return any(locks.is_held(queue / run_id) for queue in slots.glob("*.queue"))
