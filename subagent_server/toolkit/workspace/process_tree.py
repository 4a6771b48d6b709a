"""Ending everything that a program of ours has started."""

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
"""Whether a process is the shim of a run: it outlives the program that has started it."""
_BOUND_AFTER_KILL = 5.0


def nobody(_: Identity) -> bool:
    """Spare nobody."""
    return False


def end_tree(leader: int, grace: float, spare: Spare) -> bool:
    """End the session that process `leader` leads and all that descends from it: TERM, after `grace` s KILL.

    Descendants that are to be spared, and all below them, are somebody else's. `leader` may have ended but
    must not have been reaped, so that its number cannot name anybody else. Return whether nothing is left;
    what the kernel cannot kill within a few seconds stays behind.
    """
    known: list[Identity] = []
    told: set[Identity] = set()
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
            new = [identity for identity in known if identity not in told]
            _send(new, signal.SIGTERM)
            _send(new, signal.SIGCONT)  # what was stopped could not act on it
            told.update(new)
        pause.wait(min(0.005 * 2 ** min(attempt, 4), 0.08))
    return not known


def _members(leader: int, known: list[Identity], spare: Spare) -> list[Identity]:
    """Return what lives of the session, of `known`, and below all these, each before its children.

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
