"""Limits of the programs in a box, and which of them this machine can keep.

Memory and processes are bounded by a control group where one can be had (`run/control_groups.py`): for all
programs of a run together, whatever kind of memory they use. These limits hold besides, for each process. The
kernel counts only private memory for them: not what is shared, as a file in memory is.

A shell sets them inside, for itself and all that it starts: set outside, the number of processes would count
all that the user has elsewhere. For root the kernel does not count processes at all; there the box's own
namespace of pids gets a highest number, which Linux has since 6.14.
"""

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Sequence

from subagent_server.run.agent_definition import SandboxLimits
from subagent_server.run.control_groups import GROUPS

_RESERVED = 300
"""Pids that the kernel gives out only once (RESERVED_PIDS of its kernel/pid.c)."""
_SINCE = (6, 14)
_OPEN_FILES = 4096
_ADJUSTMENT = 500
"""The kernel, short of memory, ends a program of a box before the worker."""
_HIGHEST_PID = "/proc/sys/kernel/pid_max"


def of_system(program: str) -> str:
    """Return the path of a program in a box, by whose name a run could have put another one into `PATH`.

    Where the system keeps it elsewhere, that is the name.
    """
    return shutil.which(program, path=os.defpath) or program


def giving_way() -> list[str]:
    """Return the beginning of a command line: a server answers as quickly while many boxes are busy."""
    return [of_system("nice"), "-n", "5"]


def limits_as_shell(limits: SandboxLimits) -> str:
    """Return the commands by which a bash bounds itself and all that it starts."""
    bounds = {
        "-u": limits.processes,
        "-d": limits.memory_bytes >> 10,
        "-f": limits.file_bytes >> 10,
        "-c": 0,
        "-n": _OPEN_FILES,
    }
    words = "; ".join(f"ulimit {flag} {max(bound, 0)}" for flag, bound in bounds.items())
    return f"{{ {words}; echo {_ADJUSTMENT} > /proc/self/oom_score_adj; }} 2>/dev/null; "


def bounding_processes(pid: int, limits: SandboxLimits) -> "subprocess.Popen[bytes] | None":
    """For root: start to bound the number of processes in the box that holds `pid`; the caller collects it.

    On an older kernel the number would be that of the whole machine, so nothing is done there.
    """
    if os.geteuid() != 0 or not has_highest_pid():
        return None
    highest = f"echo {limits.processes + _RESERVED} > {_HIGHEST_PID}"
    return subprocess.Popen(
        ["nsenter", "--target", str(pid), "--pid", "sh", "-c", highest],
        env={"PATH": os.defpath},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


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


def limits_as_resources(limits: SandboxLimits) -> dict[str, int]:
    """Return the same bounds by the names that Python's module `resource` has for them."""
    return {
        "RLIMIT_NPROC": max(limits.processes, 0),
        "RLIMIT_DATA": max(limits.memory_bytes, 0),
        "RLIMIT_FSIZE": max(limits.file_bytes, 0),
        "RLIMIT_CORE": 0,
        "RLIMIT_NOFILE": _OPEN_FILES,
    }
