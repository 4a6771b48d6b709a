"""Stop the programs in the boxes of live runs for a moment, so that none of them changes a directory.

Another process does it, and lets them continue even if the one that asked is killed:
`python -m subagent_server.sandbox.standstill PID...`, with the first process of each box. It writes a byte
when all have stopped, and lets them continue at the end of its input. It signals all processes of a namespace
of pids at once, from inside: one that forks and exits, on and on, would escape a search for each.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from subagent_server.run import processes
from subagent_server.run.files import can_be_read

SECONDS = 5.0
_NAMESPACES = 0x1000_0000 | 0x2000_0000
"""CLONE_NEWUSER and CLONE_NEWPID of setns(2)."""
_STILL = (b"T", b"t", b"Z", b"X")
"""States of a thread that is stopped, or dead."""


@contextmanager
def standing_still(leaders: Iterable[int]) -> Iterator[None]:
    """Stop the processes of all boxes below `leaders` for a block.

    Raises:
        OSError: one of them cannot be stopped, or there is no room for a process.
    """
    boxes = [str(each.pid) for each in processes.descendants(leaders) if _is_first_in_box(each.pid)]
    if not boxes:
        yield
        return
    command = [sys.executable, "-E", "-P", "-m", __name__, *boxes]
    other = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/", start_new_session=True
    )
    try:
        with other:
            assert other.stdout is not None
            if not other.stdout.read(1):
                raise OSError("programs in a sandbox cannot be stopped")
            yield
    finally:
        if other.returncode:  # killed, so that they may still be stopped
            subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd="/")


def _is_first_in_box(pid: int) -> bool:
    """Whether a process is the one that a box was started for, and ends with."""
    with suppress(OSError):
        return processes.status_of(pid).get("NSpid", "").split()[1:] == ["2"]
    return False


def main(boxes: Sequence[int]) -> None:
    """Stop what is in these boxes until the input ends."""
    processes.keep_others_out()  # whoever is in a box could trace a process that comes into it
    deadline = time.monotonic() + SECONDS
    held: dict[int, int] = {}
    for pid in boxes:
        with suppress(ProcessLookupError):
            held[pid] = os.pidfd_open(pid)
    try:
        if all(_signalled(box, signal.SIGSTOP, deadline) for box in held.values()):
            while time.monotonic() < deadline and any(map(_is_moving, held)):
                signal.sigtimedwait((), 0.001)
            if time.monotonic() < deadline:
                os.write(1, b".")
                sys.stdin.buffer.read()
    finally:
        for box in held.values():
            _signalled(box, signal.SIGCONT, time.monotonic() + SECONDS)


def _signalled(box: int, number: signal.Signals, deadline: float) -> bool:
    """Signal everything in the box of a process; a program in there may kill the process that enters."""
    while not can_be_read(box):  # it has not ended, and its box with it
        child = os.fork()
        if not child:
            os._exit(_signal_inside(box, number))
        if os.waitpid(child, 0)[1] == 0:
            return True
        if time.monotonic() > deadline:
            return False
    return True


def _signal_inside(box: int, number: signal.Signals) -> int:
    if ctypes.CDLL(None).setns(box, _NAMESPACES):
        return 1
    if not (inside := os.fork()):  # the first one in there: this process itself stays outside
        os.kill(-1, number)
        os._exit(0)
    return int(os.waitpid(inside, 0)[1] != 0)


def _is_moving(first: int) -> bool:
    """Whether a thread in the box of its first process is neither stopped nor dead."""
    stat = processes.stat_of(first)
    for each in () if stat is None else processes.descendants([stat.parent]):
        for thread in Path(f"/proc/{each.pid}/task").glob("*/stat"):
            with suppress(OSError):
                if thread.read_bytes().rpartition(b")")[2].split()[0] not in _STILL:
                    return True
    return False


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]])
