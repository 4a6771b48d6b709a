"""Which processes of this machine belong together: by a mark that they carry, or by who started whom.

Standard library only: the shim imports this module. Everything here reads `/proc` (proc(5)).
"""

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path

from subagent_server.host.processes import (
    Identity,
    boot_id,
    host_name,
    identify,
    is_alive,
    stat_fields,
    stat_of,
)

Command = list[bytes]
"""The words of a command line, as `/proc` shows them to everybody."""

_PROC = Path("/proc")
_LOAD = _PROC / "loadavg"
_DIGITS = frozenset("123456789")
_MANY_NEW = 1_000
"""If more have come, or the numbers begin again, all are looked at."""
_KERNEL_THREAD = 0x00200000  # PF_KTHREAD of the kernel's include/linux/sched.h
_ORDINARY = (0, 3, 5)  # SCHED_OTHER, SCHED_BATCH, SCHED_IDLE
_PART = 8 << 10
_EMPTY_ROOM = bytes(1 << 10)
"""A part that ends so is followed by nothing: a block of words has an empty one in it once, if ever."""
_BEGINNING = 1 << 10
_MOST = 4 << 20
"""Longer than any block of words that a program can be started with, unless root has raised the limits."""


def environment_of(pid: int) -> frozenset[bytes]:
    """Return the `NAME=value` entries the process was started with; empty if it cannot be read.

    Of a process that is not dumpable (`host/dumpable.py`) only root can read it.
    """
    return frozenset(_split(_words(pid, "environ")))


def command_of(pid: int) -> Command:
    """Return the command line of a process; empty if it is gone. A process can write over its own."""
    return _split(_words(pid, "cmdline"))


def beginning_of_command(pid: int) -> Command:
    """Return the first words of a command line, which is enough for most; the last one may be cut."""
    return _split(_words(pid, "cmdline", limit=_BEGINNING))


def _split(data: bytes | None) -> Command:
    data = (data or b"").rstrip(b"\0")
    return data.split(b"\0") if data else []


def _words(pid: int, name: str, limit: int = _MOST) -> bytes | None:
    """Return words as they lie in memory, or None if this process may not read them.

    A process that was forked warm has much empty room behind them.
    """
    data = b""
    try:
        descriptor = os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except PermissionError:
        return None
    except OSError:
        return data
    try:
        while len(data) < limit and (part := os.read(descriptor, min(_PART, limit))):
            data += part
            if part.endswith(_EMPTY_ROOM):
                break
    except OSError:
        return b""
    finally:
        os.close(descriptor)
    return data


def _nothing(_: Command) -> bool:
    return False


def _nobody(_: object) -> bool:
    return False


def marked(entry: str) -> list[Identity]:
    """Return the live processes that were started with `entry` (`NAME=value`) in their environment."""
    return Marked(entry).look()


class Marked:
    """The live processes that were started with `entry` (`NAME=value`) in their environment, look by look.

    Of a process whose environment may not be read, `or_command` judges the command line. Processes of other
    users are left out: they could show any mark, and often cannot be ended. Those that `pass_over` knows at
    a glance are not looked at. A look that comes after one that has found nothing is
    only at what has come since, so only the first costs as much as there are processes. It is for looks at
    short intervals: numbers come again.
    """

    def __init__(
        self,
        entry: str,
        *,
        or_command: Callable[[Command], bool] = _nothing,
        pass_over: Callable[[int], bool] = _nobody,
    ) -> None:
        self._entry = entry.encode()
        self._or_command = or_command
        self._pass_over = pass_over
        self._newest: int | None = None
        """The number that was given last before the last look, if that has left nothing open."""

    def look(self) -> list[Identity]:
        """Return those that live now."""
        before, self._newest = self._newest, _newest_pid()
        found = []
        for pid in _come_between(before, self._newest):
            if self._pass_over(pid):
                continue
            data = _words(pid, "environ")
            if self._shows(pid, data):
                if not _is_of_this_user(pid):
                    continue
                found.append(identify(pid))
            elif data is None or data or _never_shows_one(pid):
                continue
            # It may have left a child that has its number already and is on no list yet; the same is true of
            # one that is about to become another program, or is going and has no environment any more.
            self._newest = None
        return [identity for identity in found if identity is not None and is_alive(identity)]

    def _shows(self, pid: int, environment: bytes | None) -> bool:
        if environment is None:
            return self._or_command(command_of(pid))
        return self._entry in environment and self._entry in environment.split(b"\0")


def _is_of_this_user(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}").stat().st_uid == os.geteuid()
    return False


def _pids() -> set[int]:
    return {int(name) for name in os.listdir(_PROC) if name[0] in _DIGITS}  # noqa: PTH208 - of thousands


def _newest_pid() -> int | None:
    """Return the number that was given last to a process or a thread, None if this is not to be known.

    If the file is another's work, as in some containers, it says something else (proc_loadavg(5)).
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


def _come_between(before: int | None, newest: int | None) -> set[int]:
    """Return the processes that have got their numbers meanwhile; all if that is not to be known."""
    if before is None or newest is None or not 0 <= newest - before <= _MANY_NEW:
        return _pids()
    return set(filter(_is_process, range(before + 1, newest + 1)))


def _never_shows_one(pid: int) -> bool:
    """Whether a process has no environment at all, and never gets one.

    One that is being started, or is going, has none yet or no more: then the kernel names no place of it.
    """
    fields = stat_fields(pid)
    if fields is None:
        return False
    return bool(int(fields[6]) & _KERNEL_THREAD) or 0 < int(fields[47]) == int(fields[48])


def set_apart(pid: int) -> None:
    """Let everybody see at a glance that a process is the shim or the worker of a run; 0 is this one.

    A glance costs a hundredth of a look at its environment. The sign is a flag of its scheduling that changes
    nothing for it or for those that it starts, who do not inherit it (sched(7)); if it would, or if it
    is refused, there is no sign. Every process can set it, so it proves nothing: whoever passes somebody over
    for it looks at the command line too.
    """
    with suppress(OSError, AttributeError):
        policy = os.sched_getscheduler(pid)
        if policy in _ORDINARY and os.getpriority(os.PRIO_PROCESS, pid) >= 0:
            os.sched_setscheduler(pid, policy | os.SCHED_RESET_ON_FORK, os.sched_param(0))


def is_set_apart(pid: int) -> bool:
    """Whether a process has the sign of `set_apart`."""
    try:
        return bool(os.sched_getscheduler(pid) & os.SCHED_RESET_ON_FORK)
    except (OSError, AttributeError):
        return False


def descendants(roots: Iterable[int], *, spare: Callable[[Identity], bool] = _nobody) -> list[Identity]:
    """Return the live processes below `roots` (not these), each before its children.

    A process that is to be spared, and all below it, is somebody else's and left out.
    """
    children = _children if _tells_children() else _by_parent().get
    found: list[Identity] = []
    queue = [child for root in roots for child in children(root) or ()]
    while queue:
        pid = queue.pop(0)
        stat = stat_of(pid)
        if stat is None or stat.is_dead:
            continue
        identity = Identity(host_name(), pid, stat.start_time, boot_id())
        if spare(identity):
            continue
        found.append(identity)
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
        stat = stat_of(pid)
        if stat is not None:
            children.setdefault(stat.parent, []).append(pid)
    return children
