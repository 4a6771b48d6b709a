"""Ending a session of processes with all their descendants."""

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from subagent_server.host import process_scan, processes
from subagent_server.host.processes import Identity

Spare = Callable[[Identity], bool]
"""Whether a process is the shim of a run: such a process outlives the program that has started it."""
_BOUND_AFTER_KILL = 5.0
_SHORT_PAUSE, _LONG_PAUSE = 0.005, 0.08


def spare_none(_: Identity) -> bool:
    """Return False: no process is spared."""
    return False


def end_tree(leader: int, grace: float, spare: Spare) -> None:
    """End the session that process `leader` leads and all that descends from it: TERM, after `grace` s KILL.

    Spared descendants, and all processes below them, are left alone. `leader` may have ended but must not
    have been reaped, so that no other process has its pid. The kernel may be unable to kill a process: it is
    left after a few seconds.
    """
    known: list[Identity] = []

    def members() -> list[Identity]:
        nonlocal known
        known = _members(leader, known, spare)
        return known

    _ask_to_end(members, grace)
    _kill(members)


def end_box(leader: int, grace: float) -> None:
    """End all processes of the box that a bubblewrap, `leader`, holds: TERM, after `grace` s KILL.

    The shell in it is only stopped, so that it cannot go on with its script: its end would take the others
    with it before they could act on TERM. All these pids are numbers of the host.
    """
    first = process_scan.descendants([leader])
    frame = [processes.identify(leader), *first[:2]]  # bubblewrap, its process 1, the shell
    _send(first[1:2], signal.SIGSTOP)
    _ask_to_end(lambda: [each for each in process_scan.descendants([leader]) if each not in frame], grace)
    rest = [each for each in frame if each is not None] + process_scan.descendants([leader])
    _kill(lambda: [each for each in rest if processes.is_alive(each)])


def _ask_to_end(members: Callable[[], list[Identity]], grace: float) -> None:
    """Send TERM to each process once, until none is left or `grace` seconds are over."""
    warned: set[Identity] = set()
    deadline = time.monotonic() + grace
    pause = _SHORT_PAUSE
    while (known := members()) and time.monotonic() < deadline:
        new = [identity for identity in known if identity not in warned]
        _send(new, signal.SIGTERM)
        _send(new, signal.SIGCONT)  # a stopped process could not act on TERM
        warned.update(new)
        threading.Event().wait(pause)
        pause = min(2 * pause, _LONG_PAUSE)


def _kill(members: Callable[[], list[Identity]]) -> None:
    deadline = time.monotonic() + _BOUND_AFTER_KILL
    while (left := members()) and time.monotonic() < deadline:
        _send(left, signal.SIGKILL)
        threading.Event().wait(_SHORT_PAUSE)


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
