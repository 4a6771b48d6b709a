"""Memory and processor time of processes, and the available memory of the machine, from `/proc`."""

import math
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from subagent_server.run import processes

_NANOSECONDS = 1_000_000_000


def proportional_mib(identity: processes.Identity | None) -> float:
    """Return the memory of a process in MiB, with shared pages divided among their users (PSS).

    Only root may read it of the processes of a run: for other users it is not a number.
    """
    try:
        return 0.0 if identity is None else _mib(identity.pid, "Pss:")
    except PermissionError:
        return math.nan


def own_mib(pid: int) -> float:
    """Return the memory of a process in MiB that it shares with no other (USS)."""
    return _mib(pid, "Private_")


def _mib(pid: int, kind: str) -> float:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith(kind)) / 1024


def available_mib() -> float:
    """Return the memory that is available to new processes, in MiB."""
    text = Path("/proc/meminfo").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("MemAvailable:")) / 1024


def worked_seconds(identity: processes.Identity) -> float:
    """Return the processor time of a process, all its threads together."""
    threads = Path(f"/proc/{identity.pid}/task").iterdir()
    return sum(int((each / "schedstat").read_text().split()[0]) for each in threads) / _NANOSECONDS


class Worked:
    """The processor time of processes as it was read last: an ended process cannot be read any more."""

    def __init__(self, watched: Iterable[processes.Identity]) -> None:
        self._seen = dict.fromkeys(watched, 0.0)
        self.look()
        self._before = self._total

    def look(self) -> None:
        """Read the processes that still exist."""
        for identity in self._seen:
            with suppress(OSError, IndexError):
                self._seen[identity] = max(self._seen[identity], worked_seconds(identity))

    @property
    def milliseconds(self) -> float:
        """The processor time between the first look and the last."""
        return (self._total - self._before) * 1000

    @property
    def _total(self) -> float:
        return sum(self._seen.values())
