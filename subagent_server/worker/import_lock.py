"""Taking turns at the heavy imports: a worker for each core, so servers and running agents stay quick."""

import os
import random
from contextlib import suppress

from subagent_server.domain.errors import StorageFailed
from subagent_server.host import locks
from subagent_server.host.directory import Directory, Entry, NotPlain


def take_import_lock(slots: Directory) -> int:
    """Take a lock, of which there are as many as cores, and return the held lock. Blocks while all are taken.

    Raises:
        StorageFailed: all the names are taken by other kinds of files.
    """
    taken: list[Entry] = []
    for number in range(os.cpu_count() or 1):
        file = slots.entry(f"starting.{number}")
        with suppress(NotPlain):
            descriptor = locks.take(file)
            if descriptor is not None:
                return descriptor
            taken.append(file)
    if not taken:
        raise StorageFailed(slots.path, "it holds something else than lock files")
    descriptor = locks.open_lock(random.choice(taken))
    locks.lock(descriptor)
    return descriptor
