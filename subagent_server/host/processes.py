"""Identify a process, see whether it lives, and send it a signal.

A pid alone is never trusted: a process is pid + start time + boot id, on one host. Dead only on proof.
Standard library only: the shim imports this module. Everything here reads `/proc` (proc(5)).
"""

import os
import select
import signal
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

_PROC = Path("/proc")
_DEAD_STATES = frozenset("ZX")


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
        """Return the identity that `data` describes, or None."""
        try:
            return cls(str(data["host"]), int(data["pid"]), int(data["startTime"]), str(data["bootId"]))
        except (KeyError, TypeError, ValueError, OverflowError):
            return None


@dataclass(frozen=True)
class Stat:
    """A process as the kernel shows it (proc_pid_stat(5)); `start_time` is in clock ticks since boot."""

    state: str
    parent: int
    start_time: int

    @property
    def is_dead(self) -> bool:
        """Whether the process has ended; its parent may not have collected it yet."""
        return self.state in _DEAD_STATES


@cache
def host_name() -> str:
    """Return the name of this host."""
    return os.uname().nodename


@cache
def boot_id() -> str:
    """Return the identity of this boot of the machine."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"


def stat_of(pid: int) -> Stat | None:
    """Return the present process of `pid` as shown by the kernel, or None."""
    try:
        text = (_PROC / str(pid) / "stat").read_bytes().decode("ascii", "replace")
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the name before it may hold anything, also ')'
    return Stat(state=fields[0], parent=int(fields[1]), start_time=int(fields[19]))


def identify(pid: int) -> Identity | None:
    """Return the identity of the process that has `pid` now, or None."""
    stat = stat_of(pid)
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
    stat = stat_of(identity.pid)
    return stat is not None and stat.start_time == identity.start_time and not stat.is_dead


def is_stopped(identity: Identity) -> bool:
    """Whether that very process is stopped (SIGSTOP)."""
    stat = stat_of(identity.pid)
    return stat is not None and stat.start_time == identity.start_time and stat.state == "T"


def send_signal(identity: Identity, number: int) -> bool:
    """Send a signal to exactly this process, never to another with its pid. Returns False if it is gone."""
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


def wait_for_exit(identity: Identity, seconds: float) -> None:
    """Wait until this very process and all its threads have exited, at most `seconds`: its locks are free.

    A killed process loses its memory first and its files later, and a zombie may have threads that live.
    """
    if not _is_there(identity):
        return
    try:
        descriptor = os.pidfd_open(identity.pid)
    except (ProcessLookupError, PermissionError):
        return
    try:
        if _is_there(identity):  # else the pid has come again
            poller = select.poll()
            poller.register(descriptor, select.POLLIN)
            poller.poll(seconds * 1000)
    finally:
        os.close(descriptor)


def _is_there(identity: Identity) -> bool:
    """Whether it lives or is a zombie."""
    if identity.boot_id != boot_id() or identity.host != host_name():
        return False
    stat = stat_of(identity.pid)
    return stat is not None and stat.start_time == identity.start_time


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
