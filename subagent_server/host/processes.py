"""Who a process is, whether it lives, and how to end it and what it left behind.

A pid alone is never trusted: a process is pid + start time + boot id, on one host. Dead only on proof.
Standard library only: the shim imports this module. Everything here reads `/proc` (proc(5)).
"""

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

SHIM_MARK = "SUBAGENT_SHIM"
"""Names the run of a shim in its environment, so that sweeps of other runs spare it and all below it."""

_PROC = Path("/proc")
_LOAD = _PROC / "loadavg"
_DIGITS = frozenset("123456789")
_MANY_NEW = 1_000
"""Where more have come, or the numbers begin again, all are looked at."""
_DEAD_STATES = frozenset("ZX")
_KERNEL_THREAD = 0x00200000  # PF_KTHREAD of the kernel's include/linux/sched.h
_ORDINARY = (0, 3, 5)  # SCHED_OTHER, SCHED_BATCH, SCHED_IDLE
_ENVIRONMENT_PART = 8 << 10
_EMPTY_ROOM = bytes(1 << 10)
"""A part that ends so is followed by nothing: an environment has an empty string in it once, if ever."""


@dataclass(frozen=True)
class Identity:
    """A process for ever: `start_time` is in clock ticks since boot."""

    host: str
    pid: int
    start_time: int
    boot_id: str

    def to_json(self) -> dict[str, Any]:
        """Return the camelCase mapping that is stored."""
        facts = asdict(self)
        return {
            "host": facts["host"],
            "pid": facts["pid"],
            "startTime": facts["start_time"],
            "bootId": facts["boot_id"],
        }

    @classmethod
    def from_json(cls, data: Any) -> "Identity | None":
        """Return the identity that `data` describes, or None where it describes none."""
        try:
            return cls(str(data["host"]), int(data["pid"]), int(data["startTime"]), str(data["bootId"]))
        except (KeyError, TypeError, ValueError, OverflowError):
            return None


@dataclass(frozen=True)
class _Stat:
    state: str
    parent: int
    start_time: int


@cache
def host_name() -> str:
    """Return the name of this host."""
    return os.uname().nodename


@cache
def boot_id() -> str:
    """Return what tells this boot of the machine from every other."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"


def _stat(pid: int) -> _Stat | None:
    fields = _stat_fields(pid)
    if fields is None:
        return None
    return _Stat(state=fields[0], parent=int(fields[1]), start_time=int(fields[19]))


def _stat_fields(pid: int) -> list[str] | None:
    """Return what the kernel tells of a process, from its state on: the third field (proc_pid_stat(5))."""
    try:
        text = (_PROC / str(pid) / "stat").read_bytes().decode("ascii", "replace")
    except OSError:
        return None
    return text[text.rindex(")") + 2 :].split()  # the name before it may hold anything, also ')'


def identify(pid: int) -> Identity | None:
    """Return the identity of the process that has `pid` now, or None where none has."""
    stat = _stat(pid)
    return None if stat is None else Identity(host_name(), pid, stat.start_time, boot_id())


def this_process() -> Identity:
    """Return the identity of the calling process."""
    identity = identify(os.getpid())
    if identity is None:
        return Identity(host_name(), os.getpid(), 0, boot_id())
    return identity


def is_alive(identity: Identity) -> bool:
    """Whether that very process lives on this host; a zombie does not."""
    if identity.boot_id != boot_id() or identity.host != host_name():
        return False
    stat = _stat(identity.pid)
    return stat is not None and stat.start_time == identity.start_time and stat.state not in _DEAD_STATES


def is_stopped(identity: Identity) -> bool:
    """Whether that very process is stopped (SIGSTOP)."""
    stat = _stat(identity.pid)
    return stat is not None and stat.start_time == identity.start_time and stat.state == "T"


def send_signal(identity: Identity, number: int) -> bool:
    """Send a signal to that very process and to no other that has its pid by now. False where it is gone."""
    if not is_alive(identity):
        return False
    try:
        descriptor = os.pidfd_open(identity.pid)
    except (ProcessLookupError, PermissionError):
        return False
    try:
        if not is_alive(identity):  # the pid may have come again before the descriptor was open
            return False
        signal.pidfd_send_signal(descriptor, number)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(descriptor)
    return True


def _pids() -> set[int]:
    return {int(name) for name in os.listdir(_PROC) if name[0] in _DIGITS}  # noqa: PTH208 - of thousands


def _newest_pid() -> int | None:
    """Return the number that was given last to a process or a thread, None where this is not to be known.

    Where the file is another's work, as in some containers, it says something else (proc_loadavg(5)).
    """
    try:
        if _LOAD.stat().st_dev != _PROC.stat().st_dev:
            return None
        return int(_LOAD.read_bytes().split()[4]) or None
    except (OSError, IndexError, ValueError):
        return None


def _is_process(pid: int) -> bool:
    """Whether there is a process of this number, and no thread of one."""
    try:
        status = (_PROC / str(pid) / "status").read_bytes()
    except OSError:
        return False
    return b"\nTgid:\t%d\n" % pid in status


def environment_of(pid: int) -> frozenset[bytes]:
    """Return the `NAME=value` entries the process was started with; empty where it cannot be read."""
    data = _environment(pid).rstrip(b"\0")
    return frozenset(data.split(b"\0")) if data else frozenset()


def _environment(pid: int) -> bytes:
    """Return an environment as it lies in memory. What was forked warm has much empty room at its end."""
    data = b""
    try:
        descriptor = os.open(f"/proc/{pid}/environ", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return data
    try:
        while part := os.read(descriptor, _ENVIRONMENT_PART):
            data += part
            if part.endswith(_EMPTY_ROOM):
                break
    except OSError:
        return b""
    finally:
        os.close(descriptor)
    return data


def marked(mark: str) -> list[Identity]:
    """Return the live processes that were started with `mark` (`NAME=value`) in their environment."""
    return Marked(mark).look()


class Marked:
    """The live processes that were started with `mark` (`NAME=value`) in their environment, look by look.

    A look that comes after one that has found nothing is only at what has come since, so only the first
    costs as much as there are processes. It is for looks at short intervals: numbers come again. With
    `but_set_apart`, those that are set apart are passed over too: keepers and workers of whatever runs.
    """

    def __init__(self, mark: str, *, but_set_apart: bool = False) -> None:
        self._mark = mark.encode()
        self._but_set_apart = but_set_apart
        self._newest: int | None = None
        """The number that was given last before the last look, where that has left nothing open."""

    def look(self) -> list[Identity]:
        """Return those that live now."""
        before, self._newest = self._newest, _newest_pid()
        found = []
        for pid in _come_between(before, self._newest):
            if self._but_set_apart and _is_set_apart(pid):
                continue
            data = _environment(pid)
            if self._mark in data and self._mark in data.split(b"\0"):
                found.append(identify(pid))
            elif data or _never_shows_one(pid):
                continue
            # It may have left a child that has its number already and is on no list yet; the same is true of
            # one that is about to become another program, or is going and has no environment any more.
            self._newest = None
        return [identity for identity in found if identity is not None and is_alive(identity)]


def _come_between(before: int | None, newest: int | None) -> set[int]:
    """Return the processes that have got their numbers meanwhile; all where that is not to be known."""
    if before is None or newest is None or not 0 <= newest - before <= _MANY_NEW:
        return _pids()
    return set(filter(_is_process, range(before + 1, newest + 1)))


def _never_shows_one(pid: int) -> bool:
    """Whether a process has no environment that could be read, or none at all.

    One that is being started, or is going, has none yet or no more: then the kernel names no place of it.
    """
    fields = _stat_fields(pid)
    if fields is None:
        return False
    if int(fields[6]) & _KERNEL_THREAD or 0 < int(fields[47]) == int(fields[48]):
        return True
    try:
        os.close(os.open(f"/proc/{pid}/environ", os.O_RDONLY | os.O_CLOEXEC))
    except PermissionError:
        return True
    except OSError:
        pass
    return False


def set_apart(pid: int) -> None:
    """Let everybody see at a glance that a process is the keeper or the worker of a run; 0 is this one.

    A glance costs a hundredth of a look at its environment. The sign is a flag of its scheduling that changes
    nothing for it or for those that it starts, who do not inherit it (sched(7)); where it would, or where it
    is refused, there is no sign.
    """
    with suppress(OSError, AttributeError):
        policy = os.sched_getscheduler(pid)
        if policy in _ORDINARY and os.getpriority(os.PRIO_PROCESS, pid) >= 0:
            os.sched_setscheduler(pid, policy | os.SCHED_RESET_ON_FORK, os.sched_param(0))


def _is_set_apart(pid: int) -> bool:
    try:
        return bool(os.sched_getscheduler(pid) & os.SCHED_RESET_ON_FORK)
    except (OSError, AttributeError):
        return False


def descendants(roots: Iterable[int], *, spare: str) -> list[Identity]:
    """Return the live processes below `roots` (not these), each before its children.

    A process whose environment names a variable `spare`, and all below it, is somebody else's and left out.
    """
    children = _children if _tells_children() else _by_parent().get
    prefix = f"{spare}=".encode()
    found: list[Identity] = []
    queue = [child for root in roots for child in children(root) or ()]
    while queue:
        pid = queue.pop(0)
        stat = _stat(pid)
        if stat is None or stat.state in _DEAD_STATES:
            continue
        if any(entry.startswith(prefix) for entry in environment_of(pid)):
            continue
        found.append(Identity(host_name(), pid, stat.start_time, boot_id()))
        queue.extend(children(pid) or ())
    return found


@cache
def _tells_children() -> bool:
    """Whether this kernel tells the children of a process without all others being asked for their parent."""
    return Path("/proc/thread-self/children").exists()


def _children(pid: int) -> list[int]:
    """Return the children of a process, each of which belongs to the thread that forked it."""
    found: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
            with suppress(FileNotFoundError):  # a thread that has just ended has given its children to others
                found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_bytes().split())
    return found


def _by_parent() -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for pid in _pids():
        stat = _stat(pid)
        if stat is not None:
            children.setdefault(stat.parent, []).append(pid)
    return children


def reap_children() -> dict[int, int]:
    """Collect every child of this process that has ended: pid to wait status."""
    ended: dict[int, int] = {}
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ended[pid] = status
    return ended
