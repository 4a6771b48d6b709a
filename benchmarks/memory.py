"""What processes weigh and work, and what the machine has left, read from `/proc`."""

import os
from pathlib import Path

from subagent_server.host import processes

_NANOSECONDS = 1_000_000_000


def proportional_mib(identity: processes.Identity | None) -> float:
    """Return the memory of a process in MiB, what it shares with others divided among them (PSS)."""
    if identity is None:
        return 0.0
    text = Path(f"/proc/{identity.pid}/smaps_rollup").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")) / 1024


def available_mib() -> float:
    """Return how much memory could still be given to somebody, in MiB."""
    text = Path("/proc/meminfo").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("MemAvailable:")) / 1024


def worked_seconds(identity: processes.Identity) -> float:
    """Return how long a process has had a processor, all its threads together."""
    threads = Path(f"/proc/{identity.pid}/task").iterdir()
    return sum(int((each / "schedstat").read_text().split()[0]) for each in threads) / _NANOSECONDS


def busy_seconds() -> float:
    """Return how long the processors of this machine have worked since it was started, for whomever."""
    user, nice, system, _, _, irq, softirq, *_ = map(
        int, Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
    )
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
