"""Limits of the programs in a box, and which of them this machine can keep.

Memory and processes are bounded by a control group where one can be had (`run/control_groups.py`): for all
programs of a run together, whatever kind of memory they use. These limits hold besides, for each process. The
kernel counts only private memory for them: not what is shared, as a file in memory is.

They are set for the first program of a box, and hold for all that it starts. Of a process in a box the
kernel counts the processes of that box alone. For root it counts none at all; there the namespace of pids of
the box gets a highest number, which Linux has since 6.14.
"""

import os
import platform
import re
import resource
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from subagent_server.run.agent_definition import SandboxLimits
from subagent_server.run.control_groups import GROUPS

_RESERVED = 300
"""Pids that the kernel uses only once (RESERVED_PIDS of its kernel/pid.c)."""
_SINCE = (6, 14)
_OPEN_FILES = 4096
_OOM_SCORE = 500
_HIGHEST_PID = "/proc/sys/kernel/pid_max"


def of_system(program: str) -> str:
    """Return the path of a program in a box, by whose name a run could have put another one into `PATH`.

    Where the system keeps it elsewhere, that is the name.
    """
    return shutil.which(program, path=os.defpath) or program


def giving_way() -> list[str]:
    """Return the beginning of a command line: a server answers as quickly while many boxes are busy."""
    return [of_system("nice"), "-n", "5"]


def bound(pid: int, limits: SandboxLimits) -> None:
    """Bound a process in a box, and all that it starts from now on. Blocking: as root, for milliseconds."""
    most = {
        resource.RLIMIT_NPROC: limits.processes,
        resource.RLIMIT_DATA: limits.memory_bytes,
        resource.RLIMIT_FSIZE: limits.file_bytes,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: _OPEN_FILES,
    }
    lower(pid, {limit: max(size, 0) for limit, size in most.items()})
    raise_oom_score(pid)
    if os.geteuid() == 0 and has_highest_pid():  # on an older kernel it would be that of the whole machine
        highest = f"echo {limits.processes + _RESERVED} > {_HIGHEST_PID}"
        subprocess.run(
            ["nsenter", "--target", str(pid), "--pid", "sh", "-c", highest],
            env={"PATH": os.defpath},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


def raise_oom_score(pid: int) -> None:
    """Let the kernel, if memory is short, end a process and what it starts from now on, before the worker."""
    with suppress(OSError):  # it has ended
        Path(f"/proc/{pid}/oom_score_adj").write_text(str(_OOM_SCORE), encoding="ascii")


def lower(pid: int, most: Mapping[int, int]) -> None:
    """Lower limits of a process; one that is lower already stays."""
    for limit, size in most.items():
        with suppress(OSError):  # it has ended
            hard = resource.prlimit(pid, limit)[1]
            size = size if hard == resource.RLIM_INFINITY else min(size, hard)
            resource.prlimit(pid, limit, (size, size))


def has_highest_pid() -> bool:
    """Whether a namespace of pids can have a highest number of its own here."""
    version = re.match(r"(\d+)\.(\d+)", platform.release())
    is_late = version is not None and (int(version[1]), int(version[2])) >= _SINCE
    return is_late and shutil.which("nsenter", path=os.defpath) is not None


def entering(run_id: str, limits: SandboxLimits) -> Sequence[str]:
    """Return the beginning of a command line that works in the group of a run; empty if there is none."""
    return GROUPS.words(run_id, memory=max(limits.memory_bytes, 0), processes=max(limits.processes, 0))


def limits_as_text(limits: SandboxLimits) -> str:
    """Return the limits that are real here, for people."""
    has_group = GROUPS.kind() is not None
    counted = has_group or os.geteuid() != 0 or has_highest_pid()
    processes = f"{limits.processes} processes" if counted else "processes not bounded, as root"
    memory, file = _size(limits.memory_bytes), _size(limits.file_bytes)
    of_memory = "memory" if has_group else "private memory of each process"
    return f"{memory} {of_memory}, {processes}, files of {file}"


def _size(size: int) -> str:
    return f"{size / (1 << 30):g} GiB" if size >= 1 << 30 else f"{size / (1 << 20):g} MiB"
