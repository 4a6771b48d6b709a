"""What a process gets from the one that starts it, beside environment, directory and descriptors.

A process that is forked on request from another place takes these over, so that it is as if its starter had
started it. What cannot be taken over has to be the same already. Linux only.
Standard library only, and little of it: the front of a server imports this module.
"""

import os
import resource
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_FENCES = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
_RIGHTS = ("Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp")
_PYTHON_IGNORES = frozenset({signal.SIGPIPE, signal.SIGXFSZ})
_OOM = "/proc/self/oom_score_adj"
_LIMITS = sorted(name for name in dir(resource) if name.startswith("RLIMIT_"))


def capture() -> "dict[str, Any]":
    """Return what the calling thread would hand on to a process that it starts."""
    facts = _status("self")
    return {
        "umask": int(facts["Umask"], 8),
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "oom": _read(_OOM).strip(),
        "cpus": sorted(os.sched_getaffinity(0)),
        "limits": [list(resource.getrlimit(number)) for number in _limits()],
        "blocked": sorted(int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "ignored": _numbers(int(facts["SigIgn"], 16)),
    }


def assume(wanted: "dict[str, Any]") -> None:
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
    if _read(_OOM).strip() != wanted["oom"]:
        _write(_OOM, wanted["oom"])
    _assume_signals(frozenset(wanted["ignored"]))
    signal.pthread_sigmask(signal.SIG_SETMASK, wanted["blocked"])


def _assume_signals(ignored: frozenset[int]) -> None:
    """Ignore what the starter ignores; the rest is as a Python program finds it at its start."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        action: Any = signal.SIG_IGN if number in ignored | _PYTHON_IGNORES else signal.SIG_DFL
        if number == signal.SIGINT and action is signal.SIG_DFL:
            action = signal.default_int_handler
        if signal.getsignal(number) != action:
            try:
                signal.signal(number, action)
            except (OSError, ValueError):
                continue  # one that the C library keeps for itself


def other_rights(pid: int) -> str | None:
    """Return in which rights another process is so unlike this one that no child of this can be its child.

    Raises:
        OSError: it cannot be looked at, or it is gone.
    """
    mine, theirs = _status("self"), _status(str(pid))
    return next((f"another {name}" for name in _RIGHTS if mine.get(name) != theirs.get(name)), None)


def open_place() -> list[int]:
    """Return descriptors of the namespaces and of the root directory of this process, to show where it is.

    Who is elsewhere cannot open them. They are not looked up by pid, because only root may see where a
    process is that is not dumpable.

    Raises:
        OSError: there is no descriptor left.
    """
    opened: list[int] = []
    try:
        for path in _place():
            opened.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        for descriptor in opened:
            os.close(descriptor)
        raise
    return opened


def is_place(descriptors: "Sequence[int]") -> bool:
    """Whether these are what `open_place` returns in a process that is where this one is."""
    seen = [os.fstat(descriptor) for descriptor in descriptors]
    mine = [os.stat(path) for path in _place()]  # noqa: PTH116
    return [(each.st_dev, each.st_ino) for each in seen] == [(each.st_dev, each.st_ino) for each in mine]


def _place() -> list[str]:
    return [*(f"/proc/self/ns/{name}" for name in _FENCES), "/"]


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
        _write(f"/sys/fs/cgroup/{path.lstrip('/')}/cgroup.procs", "0")
    if _control_groups("self") != wanted:
        raise OSError("another control group")


def _control_groups(who: str) -> list[str]:
    return _read(f"/proc/{who}/cgroup").splitlines()


def _status(who: str) -> dict[str, str]:
    lines = _read(f"/proc/{who}/status").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _limits() -> list[int]:
    return [getattr(resource, name) for name in _LIMITS]


def _numbers(mask: int) -> list[int]:
    return [number for number in range(1, 65) if mask >> (number - 1) & 1]


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123
        return file.read()


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123
        file.write(text)
