"""The process of a command whose work a fork does: it passes on signals and the exit code.

Signals to the front reach the fork. The fork ends when the front is gone, and the front ends as the fork has
ended. Standard library only, and little of it: every handed-over command imports this module first.
"""

import _socket
import fcntl
import os
import select
import signal
import sys

from subagent_server.forkserver.client import FAILURES, ForkConnection, new_order
from subagent_server.forkserver.installation import installation_key

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import NoReturn

_RELAYED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_EXIT = b"exit "


def stand_for_fork(program: str, directory: str) -> None:
    """Have this very command done by a fork of the zygote in `directory`, and exit as the fork exits.

    Returns if there is no zygote that does it: then nothing has begun, and this process does it itself.
    """
    if sys.platform != "linux":
        return
    streams = {number: number for number in (0, 1, 2) if _is_open(number)}
    occupied = _occupy_streams()  # else the connection would get the number of a stream that is closed
    started = _started(program, directory, streams)
    if started is not None:
        Front(*started).attend()
    for number in occupied:
        os.close(number)


def _started(program: str, directory: str, streams: "dict[int, int]") -> "tuple[ForkConnection, int] | None":
    """Return the connection to a fork that has begun, and its pidfd; None if nothing has begun."""
    try:
        connection = ForkConnection(directory, installation_key())
    except FAILURES:
        return None
    order = new_order(program, sys.orig_argv, sys.argv, os.environ, has_front=True)
    try:
        connection.order(order, streams, cwd=".")
        return connection, connection.go()
    except FAILURES:
        connection.close()
        return None


def leave_by(connection: _socket.socket) -> "Callable[[int], NoReturn]":
    """In the fork: return the function that reports an exit code to the front, and exits.

    From now on the kernel sends this process SIGTERM when the front is gone: it watches the connection
    (fcntl(2), F_SETSIG), so that this takes neither a thread nor a loop.
    """
    descriptor = connection.detach()
    os.set_blocking(descriptor, True)
    fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGTERM)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_ASYNC)

    def leave(status: int) -> "NoReturn":
        try:
            os.write(descriptor, _EXIT + str(status & 0xFF).encode("ascii"))
        finally:  # also if the front is gone
            os._exit(status)

    gone = select.poll()
    gone.register(descriptor, 0)
    if gone.poll(0):  # before the kernel was asked to watch
        os.kill(os.getpid(), signal.SIGTERM)
    return leave


class Front:
    """In the front: stands for the fork behind `connection`; `process` is a pidfd of it."""

    def __init__(self, connection: ForkConnection, process: int) -> None:
        self._connection = connection
        self._process = process
        self._last: int = signal.SIGKILL
        for number in _RELAYED:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._pass_on)
        signal.signal(signal.SIGTSTP, self._stop)
        signal.signal(signal.SIGCONT, self._pass_on)

    def attend(self) -> "NoReturn":
        """Wait for the end of the fork, and end in the same way."""
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1):  # only the fork has them now: its reader sees the end of its output
            os.dup2(nothing, number)
        last_message = self._connection.read_end()
        if last_message.startswith(_EXIT):
            os._exit(int(last_message.removeprefix(_EXIT)))
        if self._last != signal.SIGKILL:
            signal.signal(self._last, signal.SIG_DFL)
        os.kill(os.getpid(), self._last)
        os._exit(1)

    def _pass_on(self, number: int, frame: "FrameType | None") -> None:
        if number != signal.SIGCONT:
            self._last = number
        self._send(number)

    def _stop(self, number: int, frame: "FrameType | None") -> None:
        self._send(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)

    def _send(self, number: int) -> None:
        try:
            signal.pidfd_send_signal(self._process, number)
        except ProcessLookupError:
            return  # it has just ended: attend() reads how


def _occupy_streams() -> "list[int]":
    """Open /dev/null in the place of each closed stream; return their numbers."""
    occupied: list[int] = []
    while (number := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)) <= 2:
        occupied.append(number)
    os.close(number)
    return occupied


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True
