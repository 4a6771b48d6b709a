"""Two processes that are one to everybody else: a front that was started, and a fork that does its work.

Signals to the front reach the fork. The fork ends when the front is gone, and the front ends as the fork has
ended. Standard library only, and little of it: the front of a server imports this module.
"""

import fcntl
import os
import select
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket as Socket
    from types import FrameType
    from typing import NoReturn

_RELAYED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_EXIT = b"exit "


def put_on_leash(connection: "Socket") -> None:
    """In the fork: get SIGTERM when the front is gone, and tell it the exit code, whoever calls for the exit.

    The kernel watches the connection (fcntl(2), F_SETSIG), so that it takes neither a thread nor a loop.
    """
    descriptor = connection.detach()
    os.set_blocking(descriptor, True)
    fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGTERM)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_ASYNC)
    leave = os._exit

    def leave_and_tell(status: int) -> "NoReturn":
        try:
            os.write(descriptor, _EXIT + str(status & 0xFF).encode("ascii"))
        finally:  # whether or not anybody wants to know
            leave(status)

    os._exit = leave_and_tell
    gone = select.poll()
    gone.register(descriptor, 0)
    if gone.poll(0):  # before the kernel was asked to watch
        os.kill(os.getpid(), signal.SIGTERM)


class Front:
    """In the front: stands for the fork behind `connection`; `process` is a pidfd of it."""

    def __init__(self, connection: "Socket", process: int) -> None:
        self._connection = connection
        self._process = process
        self._last: int = signal.SIGKILL
        for number in _RELAYED:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._relay)
        signal.signal(signal.SIGTSTP, self._stop)
        signal.signal(signal.SIGCONT, self._relay)

    def attend(self) -> "NoReturn":
        """Wait for the end of the fork, and end in the same way."""
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1):  # they are the fork's now: who reads its output shall see the end of it
            os.dup2(nothing, number)
        self._connection.settimeout(None)
        try:
            said = self._connection.recv(64)
        except OSError:
            said = b""
        if said.startswith(_EXIT):
            os._exit(int(said.removeprefix(_EXIT)))
        if self._last != signal.SIGKILL:
            signal.signal(self._last, signal.SIG_DFL)
        os.kill(os.getpid(), self._last)
        os._exit(1)

    def _relay(self, number: int, frame: "FrameType | None") -> None:
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
            return  # it has just ended: attend() hears of it
