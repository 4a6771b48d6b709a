"""Ending a session of processes with all their descendants."""

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path

from subagent_server.host import process_scan, processes
from subagent_server.host.processes import Identity

Spare = Callable[[Identity], bool]
"""Whether a process is the shim of a run: such a process outlives the program that has started it."""
_BOUND_AFTER_KILL = 5.0


def spare_none(_: Identity) -> bool:
    """Return False: no process is spared."""
    return False


def end_tree(leader: int, grace: float, spare: Spare) -> bool:
    """End the session that process `leader` leads and all that descends from it: TERM, after `grace` s KILL.

    Spared descendants, and all processes below them, are left alone. `leader` may have ended but must not
    have been reaped, so that no other process has its pid. Return whether no process is left: the kernel may
    be unable to kill one within a few seconds.
    """
    known: list[Identity] = []
    warned: set[Identity] = set()
    grace_ends = time.monotonic() + grace
    pause = threading.Event()
    for attempt in count():
        known = _members(leader, known, spare)
        now = time.monotonic()
        if not known or now > grace_ends + _BOUND_AFTER_KILL:
            break
        if now >= grace_ends:
            _send(known, signal.SIGKILL)
        else:
            new = [identity for identity in known if identity not in warned]
            _send(new, signal.SIGTERM)
            _send(new, signal.SIGCONT)  # a stopped process could not act on TERM
            warned.update(new)
        pause.wait(min(0.005 * 2 ** min(attempt, 4), 0.08))
    return not known


def end_box(leader: int, grace: float) -> bool:
    """End all processes of the box that a bubblewrap, `leader`, holds: TERM, after `grace` s KILL.

    The shell in it is only stopped, so that it cannot go on with its script: its end would take the others
    with it before they could act on TERM. All these pids are numbers of the host. Return whether no process
    is left.
    """
    first = process_scan.descendants([leader])
    frame = [processes.identify(leader), *first[:2]]  # bubblewrap, its process 1, the shell
    warned: set[Identity] = set()
    _send(first[1:2], signal.SIGSTOP)
    deadline = time.monotonic() + grace
    pause = threading.Event()
    for attempt in count():
        others = [each for each in process_scan.descendants([leader]) if each not in frame]
        if not others or time.monotonic() > deadline:
            break
        new = [identity for identity in others if identity not in warned]
        _send(new, signal.SIGTERM)
        _send(new, signal.SIGCONT)
        warned.update(new)
        pause.wait(min(0.005 * 2 ** min(attempt, 4), 0.08))
    rest = [identity for identity in frame if identity is not None] + process_scan.descendants([leader])
    _send(rest, signal.SIGKILL)
    deadline = time.monotonic() + _BOUND_AFTER_KILL
    while (left := any(map(processes.is_alive, rest))) and time.monotonic() < deadline:
        pause.wait(0.002)
    return not left


def _members(leader: int, known: list[Identity], spare: Spare) -> list[Identity]:
    """Return the living processes of the session, of `known`, and below them, parents before children.

    A shell whose child is ended before itself would go on with the next line of its script.
    """
    session = _session(leader)
    members = [identity for identity in session if identity.pid == leader]
    members += process_scan.descendants([leader], spare=spare)
    others = [*session, *(identity for identity in known if processes.is_alive(identity))]
    strays = [identity for identity in others if identity not in members]
    if strays:
        members += strays
        members += process_scan.descendants([stray.pid for stray in strays], spare=spare)
    return list(dict.fromkeys(members))


def _session(leader: int) -> list[Identity]:
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(ProcessLookupError, PermissionError, ValueError):
            if os.getsid(int(entry.name)) == leader:
                found.append(processes.identify(int(entry.name)))
    return [identity for identity in found if identity is not None and processes.is_alive(identity)]


def _send(targets: list[Identity], number: int) -> None:
    for identity in targets:
        processes.send_signal(identity, number)
