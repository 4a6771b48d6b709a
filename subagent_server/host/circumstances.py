"""What a process gets from the one that starts it, beside environment, directory and descriptors.

A process that is forked on request from another place takes these over, so that it is as if its starter had
started it. What cannot be taken over has to be the same already. Linux only. Standard library only.
"""

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

_FENCES = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
_RIGHTS = ("Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp")
_PYTHON_IGNORES = frozenset({signal.SIGPIPE, signal.SIGXFSZ})
_LIMITS = sorted(name for name in dir(resource) if name.startswith("RLIMIT_"))


def capture() -> dict[str, Any]:
    """Return what the calling thread would hand on to a process that it starts."""
    facts = _status("self")
    return {
        "umask": int(facts["Umask"], 8),
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "oom": _oom_file().read_text(encoding="ascii").strip(),
        "cpus": sorted(os.sched_getaffinity(0)),
        "limits": [list(resource.getrlimit(number)) for number in _limits()],
        "blocked": sorted(int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "ignored": _numbers(int(facts["SigIgn"], 16)),
    }


def assume(wanted: dict[str, Any]) -> None:
    """Take over what `capture` has found elsewhere.

    Raises:
        OSError, ValueError: something cannot be taken over, like a limit above that of this process.
    """
    os.umask(wanted["umask"])
    for number, limit in zip(_limits(), wanted["limits"], strict=True):
        if list(resource.getrlimit(number)) != limit:
            resource.setrlimit(number, (limit[0], limit[1]))
    if sorted(os.sched_getaffinity(0)) != wanted["cpus"]:
        os.sched_setaffinity(0, wanted["cpus"])
    if os.getpriority(os.PRIO_PROCESS, 0) != wanted["nice"]:
        os.setpriority(os.PRIO_PROCESS, 0, wanted["nice"])
    if _oom_file().read_text(encoding="ascii").strip() != wanted["oom"]:
        _oom_file().write_text(wanted["oom"], encoding="ascii")
    _assume_signals(frozenset(wanted["ignored"]))
    signal.pthread_sigmask(signal.SIG_SETMASK, wanted["blocked"])


def _assume_signals(ignored: frozenset[int]) -> None:
    """Ignore what the starter ignores; the rest is as a Python program finds it at its start."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        action: Any = signal.SIG_IGN if number in ignored | _PYTHON_IGNORES else signal.SIG_DFL
        if number == signal.SIGINT and action is signal.SIG_DFL:
            action = signal.default_int_handler
        if signal.getsignal(number) != action:
            with suppress(OSError, ValueError):  # one that the C library keeps for itself
                signal.signal(number, action)


def difference(pid: int) -> str | None:
    """Return in what another process is so unlike this one that no child of this can stand for its child.

    Raises:
        OSError: it cannot be looked at, or it is gone.
    """
    for name in _FENCES:
        if (Path("/proc") / str(pid) / "ns" / name).readlink() != Path("/proc/self/ns", name).readlink():
            return f"another {name} namespace"
    mine, theirs = _status("self"), _status(str(pid))
    for name in _RIGHTS:
        if mine.get(name) != theirs.get(name):
            return f"another {name}"
    if (Path("/proc") / str(pid) / "root").readlink() != Path("/proc/self/root").readlink():
        return "another root directory"
    return None


def join_control_group(pid: int) -> None:
    """Move this process into the control groups of another one, whose limits are meant for its children too.

    Raises:
        OSError: it is in another one that this process may not join.
    """
    if _control_groups("self") == (wanted := _control_groups(str(pid))):
        return
    for line in wanted:
        number, _, path = line.split(":", 2)
        if line in _control_groups("self"):
            continue
        if number != "0":
            raise OSError("another control group of the first kind")
        Path("/sys/fs/cgroup", path.lstrip("/"), "cgroup.procs").write_text("0", encoding="ascii")
    if _control_groups("self") != wanted:
        raise OSError("another control group")


def _control_groups(who: str) -> list[str]:
    return Path("/proc", who, "cgroup").read_text(encoding="utf-8", errors="surrogateescape").splitlines()


def _status(who: str) -> dict[str, str]:
    text = Path("/proc", who, "status").read_text(encoding="ascii", errors="replace")
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}


def _limits() -> Iterator[int]:
    return (getattr(resource, name) for name in _LIMITS)


def _numbers(mask: int) -> list[int]:
    return [number for number in range(1, 65) if mask >> (number - 1) & 1]


def _oom_file() -> Path:
    return Path("/proc/self/oom_score_adj")
