"""Process attributes that a fork of the zygote takes over from its starter: umask, limits, signals and more.

Afterwards the fork is as if the starter had started it. An attribute that cannot be taken over has to be the
same already. Linux only. Standard library only, and little of it: the front of a command imports this module.
"""

import os
import resource
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
_RIGHTS = ("Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp")
_PYTHON_IGNORES = frozenset({signal.SIGPIPE, signal.SIGXFSZ})
_OOM = "/proc/self/oom_score_adj"
_IO_PRIORITY_CALLS = {"x86_64": (251, 252), "aarch64": (30, 31), "riscv64": (30, 31)}
"""By machine, the numbers of ioprio_set(2) and ioprio_get(2), for which the C library has no functions."""
_ASK_PERSONALITY = 0xFFFFFFFF
_LIMITS = [getattr(resource, name) for name in sorted(dir(resource)) if name.startswith("RLIMIT_")]


def capture() -> "dict[str, Any]":
    """Return the attributes that a child of the calling thread would have."""
    facts = _status("self")
    return {
        "umask": int(facts["Umask"], 8),
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "oom": _read(_OOM).strip(),
        "personality": _personality(),
        "cpus": sorted(os.sched_getaffinity(0)),
        "limits": [list(resource.getrlimit(number)) for number in _LIMITS],
        "blocked": sorted(int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "ignored": _numbers(int(facts["SigIgn"], 16)),
    }


def assume(wanted: "dict[str, Any]") -> None:
    """Take over the attributes that `capture` returned in another process.

    Raises:
        OSError, ValueError: one cannot be taken over, such as a limit above that of this process.
    """
    os.umask(wanted["umask"])
    for number, limit in zip(_LIMITS, wanted["limits"], strict=True):
        if list(resource.getrlimit(number)) != limit:
            resource.setrlimit(number, (limit[0], limit[1]))
    if sorted(os.sched_getaffinity(0)) != wanted["cpus"]:
        os.sched_setaffinity(0, wanted["cpus"])
    if os.getpriority(os.PRIO_PROCESS, 0) != wanted["nice"]:
        os.setpriority(os.PRIO_PROCESS, 0, wanted["nice"])
    if _read(_OOM).strip() != wanted["oom"]:
        _write(_OOM, wanted["oom"])
    if _personality() != wanted["personality"]:
        _library().personality(wanted["personality"])
    _assume_signals(frozenset(wanted["ignored"]))
    signal.pthread_sigmask(signal.SIG_SETMASK, wanted["blocked"])


def _assume_signals(ignored: frozenset[int]) -> None:
    """Ignore the signals that the starter ignores; handle the others as a fresh interpreter does."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        action: Any = signal.SIG_IGN if number in ignored | _PYTHON_IGNORES else signal.SIG_DFL
        if number == signal.SIGINT and action is signal.SIG_DFL:
            action = signal.default_int_handler
        if signal.getsignal(number) != action:
            try:
                signal.signal(number, action)
            except (OSError, ValueError):
                continue  # a signal that the C library keeps for itself


def _personality() -> int:
    """Return the execution domain of this process (personality(2)), which `setarch` sets for instance."""
    try:
        return int(_read("/proc/self/personality"), 16)
    except OSError:  # a process that is not dumpable may not read it
        return int(_library().personality(_ASK_PERSONALITY))


def assume_io_priority(pid: int) -> None:
    """Take over the I/O priority of another process, as `ionice` sets it.

    Raises:
        OSError: this process may not have it, or the other one is gone.
    """
    numbers = _IO_PRIORITY_CALLS.get(os.uname().machine)
    if numbers is None:  # the fork keeps its own: it is not worth a plain start
        return
    setting, asking = numbers
    library, one_process = _library(), 1
    wanted = library.syscall(asking, one_process, pid)
    if wanted < 0 or (
        library.syscall(asking, one_process, 0) != wanted and library.syscall(setting, one_process, 0, wanted)
    ):
        raise OSError("another I/O priority")


def _library() -> "Any":
    """Return the C library. A front never needs it, and would be slower with it."""
    import ctypes

    return ctypes.CDLL(None)


def other_rights(pid: int) -> str | None:
    """Return a right in which another process differs, so that no child of this one can be like its child.

    Raises:
        OSError: it cannot be read, or it is gone.
    """
    mine, theirs = _status("self"), _status(str(pid))
    return next((f"another {name}" for name in _RIGHTS if mine.get(name) != theirs.get(name)), None)


def open_place(opened: "list[int]") -> None:
    """Append descriptors of the namespaces and of the root directory of this process, to show its place.

    A process elsewhere cannot open them. They are not looked up by pid, because only root may do that for a
    process that is not dumpable.

    Raises:
        OSError: there is no descriptor left.
    """
    for path in _place():
        opened.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))


def is_place(descriptors: "Sequence[int]") -> bool:
    """Whether `open_place` opened these in a process that is in the same place as this one."""
    seen = [os.fstat(descriptor) for descriptor in descriptors]
    mine = [os.stat(path) for path in _place()]  # noqa: PTH116
    return [(each.st_dev, each.st_ino) for each in seen] == [(each.st_dev, each.st_ino) for each in mine]


def _place() -> list[str]:
    return [*(f"/proc/self/ns/{name}" for name in _NAMESPACES), "/"]


def join_control_group(pid: int) -> None:
    """Move this process into the control groups of another one, whose limits are meant for its children too.

    Raises:
        OSError: it is in another one that this process may not join.
    """
    wanted = _control_groups(str(pid))
    for line in set(wanted) - set(_control_groups("self")):
        number, _, path = line.split(":", 2)
        if number != "0":
            raise OSError("another control group of the first kind")
        _write(f"/sys/fs/cgroup/{path.lstrip('/')}/cgroup.procs", "0")
    if _control_groups("self") != wanted:
        raise OSError("another control group")


def _control_groups(process: str) -> list[str]:
    return _read(f"/proc/{process}/cgroup").splitlines()


def _status(process: str) -> dict[str, str]:
    lines = _read(f"/proc/{process}/status").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _numbers(mask: int) -> list[int]:
    return [number for number in range(1, 65) if mask >> (number - 1) & 1]


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123
        return file.read()


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123
        file.write(text)
