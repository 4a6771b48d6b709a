"""Find processes of this machine that belong together: by a common mark, or by their parents.

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
    stat_of,
)

Command = list[bytes]
"""The words of a command line, as `/proc` shows them to everybody."""

_PROC = Path("/proc")
_DIGITS = frozenset("123456789")
_PART = 8 << 10
_EMPTY_ROOM = bytes(1 << 10)
"""A part that ends so is followed by nothing: a block of words has an empty one in it once, if ever."""
_MOST = 4 << 20
"""Longer than any block of words that a program can be started with, unless root has raised the limits."""


def environment_of(pid: int) -> frozenset[bytes]:
    """Return the `NAME=value` entries the process was started with; empty if they cannot be read.

    Only root can read the entries of a process that is not dumpable (`host/dumpable.py`).
    """
    return frozenset(_split(_words(pid, "environ")))


def command_of(pid: int) -> Command:
    """Return the command line of a process; empty if it is gone. A process can write over its own."""
    return _split(_words(pid, "cmdline"))


def _split(data: bytes | None) -> Command:
    data = (data or b"").rstrip(b"\0")
    return data.split(b"\0") if data else []


def _words(pid: int, name: str) -> bytes | None:
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
        while len(data) < _MOST and (part := os.read(descriptor, _PART)):
            data += part
            if part.endswith(_EMPTY_ROOM):
                break
    except OSError:
        return b""
    finally:
        os.close(descriptor)
    return data


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


def with_words(*words: bytes) -> list[int]:
    """Return the pids of the processes of this user whose command lines have all of these words."""
    return sorted(pid for pid in _pids() if set(words) <= set(command_of(pid)) and _is_of_this_user(pid))


def _carries(pid: int, mark: bytes, or_command: Callable[[Command], bool]) -> bool:
    environment = _words(pid, "environ")
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
    children = _children if _lists_children() else _by_parent().get
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
    """Whether this kernel lists the children of a process, without a look at the parents of all others."""
    return Path("/proc/thread-self/children").exists()


def _children(pid: int) -> list[int]:
    """Return the children of a process, each of which belongs to the forking thread."""
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
