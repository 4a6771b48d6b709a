"""Identify a process, see whether it lives, and send it a signal.

A pid alone is never trusted: a process is pid + start time + boot id, on one host. Dead only on proof.
Standard library only: the shim imports this module. Everything here reads `/proc` (proc(5)).
"""

import ctypes
import fcntl
import math
import os
import re
import resource
import signal
import struct
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from subagent_server.run.errors import HostError
from subagent_server.run.files import can_be_read, held_open
from subagent_server.run.stderr import lack_of_room

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
        return {
            "host": self.host,
            "pid": self.pid,
            "startTime": self.start_time,
            "bootId": self.boot_id,
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
    threads: int
    start_time: int

    @property
    def is_dead(self) -> bool:
        """Whether the process has ended; its parent may not have collected it yet.

        One whose first thread alone has ended shows the state of a zombie.
        """
        return self.state in _DEAD_STATES and self.threads <= 1


NODE = "SUBAGENT_NODE"
"""Names the host in the environment of what was started on a node, by the name that its engine has for it."""
_ODD_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")


@cache
def host_name() -> str:
    """Return the name of this host."""
    return os.environ.get(NODE) or os.uname().nodename


def become_node() -> str:
    """Be known from now on by the name that the engine has for this host, and return it.

    Slurm may have several nodes on one machine, and none of them sees the processes of another.
    """
    os.environ[NODE] = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
    host_name.cache_clear()
    return host_name()


def on_node() -> str:
    """Return the beginning of a sentence on what another host than the starter's lacks; empty here."""
    return f"On {host_name()}: " if NODE in os.environ else ""


def host_tag(host: str = "") -> str:
    """Return the name of a host, else of this one, as a part of file names: it judges what has it."""
    return _ODD_IN_NAMES.sub("-", host or host_name())[:64]


@cache
def boot_id() -> str:
    """Return the identity of this boot of the machine."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"


def stat_of(pid: int) -> Stat | None:
    """Return the present process of `pid` as shown by the kernel, or None."""
    text = (_read(pid, "stat") or b"").decode("ascii", "replace")
    if not text:
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the name before it may hold anything, also ')'
    return Stat(fields[0], parent=int(fields[1]), threads=int(fields[17]), start_time=int(fields[19]))


def status_of(process: int | str) -> dict[str, str]:
    """Return what the kernel reports of a process, a pid or `self`, by field (proc_pid_status(5)).

    Raises:
        OSError: it has ended.
    """
    text = Path(f"/proc/{process}/status").read_text(encoding="utf-8", errors="replace")
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.split("\n"))}


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
    stat = _stat_of(identity)
    return stat is not None and not stat.is_dead


def is_stopped(identity: Identity) -> bool:
    """Whether that very process is stopped (SIGSTOP)."""
    stat = _stat_of(identity)
    return stat is not None and stat.state == "T"


def _stat_of(identity: Identity) -> Stat | None:
    """Return that very process as the kernel shows it, a zombie too; None if it is not on this host."""
    if identity.boot_id != boot_id() or identity.host != host_name():
        return None
    stat = stat_of(identity.pid)
    return stat if stat is not None and stat.start_time == identity.start_time else None


def check_system() -> None:
    """Check that this Python and this kernel have pidfds and memory files: no run starts or ends without.

    A Python that was built for an old C library has none: those of uv before July 2026 (release 20260718 of
    python-build-standalone). Nor has a kernel before Linux 5.3, and old container runtimes refuse the calls.

    Raises:
        HostError: they are missing, or the machine has no room.
    """
    try:
        with held_open(os.memfd_create("check")), held_open(os.pidfd_open(os.getpid())) as descriptor:
            signal.pidfd_send_signal(descriptor, 0)
    except AttributeError as error:
        raise HostError(
            f"Runs need Linux and a Python with {error.name}, which {sys.executable} was built without: "
            "install again with another, such as the system's (`uv tool install --python /usr/bin/python3`)."
        ) from error
    except OSError as error:
        raise HostError(
            lack_of_room(error)
            or f"Runs need pidfds and memory files, which this machine refuses ({error.strerror}): use Linux "
            "5.3 or later, and in a container a seccomp filter that allows pidfd_open, pidfd_send_signal and "
            "memfd_create."
        ) from error


def send_signal(identity: Identity, number: int) -> bool:
    """Send a signal to exactly this process, never to another with its pid. Returns False if it is gone."""
    if not is_alive(identity):
        return False
    with suppress(ProcessLookupError, PermissionError), held_open(os.pidfd_open(identity.pid)) as descriptor:
        if is_alive(identity):  # else the pid has come again before the descriptor was open
            signal.pidfd_send_signal(descriptor, number)
            return True
    return False


def wait_for_exit(identity: Identity, seconds: float) -> None:
    """Wait until this very process and all its threads have exited, at most `seconds`: its locks are free.

    A killed process loses its memory first and its files later, and a zombie may have threads that live.
    """
    if _stat_of(identity) is None:
        return
    with suppress(ProcessLookupError, PermissionError), held_open(os.pidfd_open(identity.pid)) as descriptor:
        if _stat_of(identity) is not None:  # else the pid has come again
            can_be_read(descriptor, seconds)


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


# -- Find processes of this machine that belong together: by a common mark, or by their parents.


Command = list[bytes]
"""The words of a command line, as `/proc` shows them to everybody."""

_DIGITS = frozenset("123456789")
_PART = 8 << 10
_EMPTY_ROOM = bytes(1 << 10)
"""A part that ends with so many NULs is the last: a block of words has an empty word at most once."""
_MOST = 4 << 20
"""Longer than any block of words that a program can be started with, unless root has raised the limits."""


def command_of(pid: int) -> Command:
    """Return the command line of a process; empty if it is gone. A process can write over its own."""
    words = (_read(pid, "cmdline") or b"").rstrip(b"\0")
    return words.split(b"\0") if words else []


def _read(pid: int, name: str) -> bytes | None:
    """Return a file about a process, empty if that is gone, or None if this process may not read it.

    A process that was forked warm has much empty room behind its words.
    """
    data = b""
    try:
        descriptor = os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except PermissionError:
        return None
    except OSError:
        return data
    with held_open(descriptor), suppress(OSError):
        while len(data) < _MOST and (part := os.read(descriptor, _PART)):
            data += part
            if part.endswith(_EMPTY_ROOM):
                break
        return data
    return b""


def _never(_: object) -> bool:
    return False


def marked(entry: str, *, or_command: Callable[[Command], bool] = _never) -> list[Identity]:
    """Return the live processes started with `entry` (`NAME=value`) in their environment.

    If the environment of a process may not be read, `or_command` judges its command line. Processes of other
    users are left out: they could show any mark, and often cannot be ended. A process just being forked is on
    no list yet: look until two looks find none.
    """
    mark = entry.encode()
    found = [identify(pid) for pid in _pids() if _carries(pid, mark, or_command) and _is_of_this_user(pid)]
    return [identity for identity in found if identity is not None and is_alive(identity)]


def values_of(name: str, *, or_command: Callable[[Command], str | None]) -> set[str]:
    """Return the values that a variable has in the environments of the live processes, in one look at all.

    If the environment of a process may not be read, `or_command` reads the value from its command line.
    """
    begin, found = f"{name}=".encode(), set[str]()
    for pid in _pids():
        environment = _read(pid, "environ")
        if environment is None:
            found |= {value for value in [or_command(command_of(pid))] if value is not None}
        elif begin in environment:
            values = (entry for entry in environment.split(b"\0") if entry.startswith(begin))
            found |= {value.removeprefix(begin).decode("utf-8", "replace") for value in values}
    return found


def with_words(*words: bytes) -> list[int]:
    """Return the pids of the processes of this user whose command lines have all of these words."""
    return sorted(pid for pid in _pids() if set(words) <= set(command_of(pid)) and _is_of_this_user(pid))


def _carries(pid: int, mark: bytes, or_command: Callable[[Command], bool]) -> bool:
    environment = _read(pid, "environ")
    if environment is None:
        return or_command(command_of(pid))
    return mark in environment and mark in environment.split(b"\0")


def _is_of_this_user(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}").stat().st_uid == os.geteuid()
    return False


def _pids() -> set[int]:
    return {int(name) for name in os.listdir(_PROC) if name[0] in _DIGITS}  # noqa: PTH208 - of thousands


def descendants(roots: Iterable[int], *, spare: Callable[[Identity], bool] = _never) -> list[Identity]:
    """Return the live processes below `roots` (not these), each before its children.

    A process to be spared, with all its descendants, belongs to another run and is left out.
    """
    children = children_of if _lists_children() else _by_parent().get
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
def _lists_children() -> bool:
    """Whether this kernel lists the children of a process.

    A search by the parents of all processes misses the children of one that ends during the look.
    """
    return Path("/proc/thread-self/children").exists()


def children_of(pid: int) -> list[int]:
    """Return the children of a process, each of which belongs to the forking thread; none if it is gone."""
    found: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
            with suppress(FileNotFoundError):  # another thread has the children of one that just ended
                found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_bytes().split())
    return found


def _by_parent() -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for pid in _pids():
        stat = stat_of(pid)
        if stat is not None:
            children.setdefault(stat.parent, []).append(pid)
    return children


# -- The deadline of a process, as reported to its supervisor: a pipe of moments.
#
# A process ends by its own limits. An unresponsive process (a blocked event loop, a stopped process)
# cannot, so its supervisor has to know the deadline.


LATE_SECONDS = 15.0
"""How long after its deadline a process is asked to end."""
_MOMENT = struct.Struct("=d")
_READ_BYTES = 64 << 10
_DRIFT_SECONDS = 1.0


class DeadlineWriter:
    """The end of the process. `descriptor` is None if its supervisor does not listen."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor
        self._written: float | None = None
        if descriptor is not None:
            os.set_inheritable(descriptor, False)  # else its children could move the limit
            os.set_blocking(descriptor, False)

    def write(self, moment: float) -> None:
        """Report a moment of the monotonic clock; infinity: none. Changes below a second are left out."""
        if self._descriptor is None or moment == self._written:
            return
        if self._written is not None and abs(moment - self._written) < _DRIFT_SECONDS:
            return
        with suppress(OSError):  # the supervisor is gone, or has not read for long
            os.write(self._descriptor, _MOMENT.pack(moment))
            self._written = moment


class DeadlineReader:
    """The end of the supervisor, which alone has `descriptor`: the process gets `writer`."""

    def __init__(self) -> None:
        self.descriptor, self.writer = os.pipe()
        self._moment = math.inf
        self._passed: float | None = None
        """When the deadline was first seen to be over."""
        os.set_blocking(self.descriptor, False)

    def begin(self, number: signal.Signals) -> None:
        """Close the other end, and get signal `number` at each new deadline (fcntl(2), F_SETSIG)."""
        os.close(self.writer)
        fcntl.fcntl(self.descriptor, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(self.descriptor, fcntl.F_SETSIG, number)
        flags = fcntl.fcntl(self.descriptor, fcntl.F_GETFL)
        fcntl.fcntl(self.descriptor, fcntl.F_SETFL, flags | os.O_ASYNC)

    def seconds_left(self) -> float:
        """Return the seconds until another look is due: 0 or less if the process has to be ended.

        The grace counts from the first look after the deadline: if both processes were suspended, the other
        one has not had its turn yet.
        """
        data = b""
        with suppress(BlockingIOError):
            data = os.read(self.descriptor, _READ_BYTES)
        whole = len(data) - len(data) % _MOMENT.size
        if whole:
            (self._moment,) = _MOMENT.unpack_from(data, whole - _MOMENT.size)
        now = time.monotonic()
        if now < self._moment:
            self._passed = None
            return self._moment - now
        self._passed = self._passed or now
        return self._passed + LATE_SECONDS - now


# -- The signal dispositions of a process, restored after a starter that ignored some signals.
#
# An ignored signal stays ignored across fork and execve(2). A supervisor ignoring SIGCHLD never collects
# its children, and a supervisor ignoring SIGTERM cannot be asked to end.


_PYTHON_IGNORES = frozenset({signal.SIGPIPE, signal.SIGXFSZ})
_FIXED = frozenset({signal.SIGKILL, signal.SIGSTOP})


def restore_defaults() -> None:
    """Handle each ignored signal as a fresh interpreter does whose starter ignored none."""
    for number in signal.valid_signals() - _FIXED - _PYTHON_IGNORES:
        if signal.getsignal(number) is signal.SIG_IGN:
            is_interrupt = number == signal.SIGINT
            signal.signal(number, signal.default_int_handler if is_interrupt else signal.SIG_DFL)


# -- Close the memory, environment and open files of this process to the user's other processes.
#
# Only root can look into a process that is not dumpable (PR_SET_DUMPABLE of prctl(2)), not the other
# processes of its user; it leaves no core dump. Its forks are not dumpable either; a program that it
# executes is again. Some files about itself below `/proc/self` are closed to the process too: `environ`,
# `mem` and `pagemap` belong to root then.


_libc = ctypes.CDLL(None)
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 1, 4, 36


def _prctl(option: int, value: int) -> None:
    """Set an attribute of this process (prctl(2))."""
    _libc.prctl(option, value, 0, 0, 0)


def keep_others_out() -> None:
    """Make this process, and its forks, not dumpable."""
    _prctl(_PR_SET_DUMPABLE, 0)


def adopt_orphans() -> None:
    """Have the orphans among the descendants of this process come to this process: be a subreaper."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent(number: signal.Signals) -> None:
    """Get signal `number` when the thread that made this process ends."""
    _prctl(_PR_SET_PDEATHSIG, number)


def forbid_core_dumps() -> None:
    """Forbid core dumps of this process and all its descendants, for good."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


# -- The time of day: every caller reads it here.


def now() -> datetime:
    """Return the current moment, in UTC."""
    return datetime.now(UTC)
