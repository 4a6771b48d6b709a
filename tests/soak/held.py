"""What a process holds, to see that it does not grow."""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from subagent_server.run import processes
from tests.helpers.processes import open_files

_MORE_MEBIBYTES = 24
"""What a long-lived server may grow by: its caches are bounded, and an allocator does not give all back."""
_MORE_THREADS = (os.cpu_count() or 1) + 4
"""The pool of asyncio starts a thread when none of its own is idle, up to this number, and keeps it."""


@dataclass(frozen=True)
class Held:
    """The counts of a process: zombies are its children, watches those of inotify, memory in MiB."""

    descriptors: int
    threads: int
    zombies: int
    watches: int
    memory: float

    def is_no_more_than(self, earlier: "Held") -> bool:
        """Whether nothing has grown since."""
        return (
            self.descriptors <= earlier.descriptors
            and self.threads <= earlier.threads + _MORE_THREADS
            and not self.zombies
            and self.watches <= earlier.watches
            and self.memory <= earlier.memory + _MORE_MEBIBYTES
        )


def held_by(pid: int) -> Held:
    """Return what a process holds now."""
    proc = Path(f"/proc/{pid}")
    watches = 0
    for entry in (proc / "fdinfo").iterdir():
        with suppress(FileNotFoundError):
            watches += entry.read_text(encoding="ascii").count("inotify wd:")
    status = dict(line.split(":", 1) for line in (proc / "status").read_text(encoding="utf-8").splitlines())
    stats = [processes.stat_of(int(each.name)) for each in Path("/proc").iterdir() if each.name.isdigit()]
    return Held(
        descriptors=len(list(open_files(pid))),
        threads=int(status["Threads"]),
        zombies=sum(stat is not None and stat.parent == pid and stat.is_dead for stat in stats),
        watches=watches,
        memory=int(status["VmRSS"].split()[0]) / 1024,
    )
