"""A fork of the zygote, until it is the program that a starter has ordered.

It takes over every attribute that a child of the starter would inherit, and then does as the plain start
does. The package's docstring draws its messages. Standard library only.
"""

import fcntl
import hmac
import os
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from subagent_server.forkserver import inherited, interpreter, protocol
from subagent_server.forkserver.front import leave_by
from subagent_server.forkserver.proctitle import ProcessTitle
from subagent_server.host.peer import Peer

ORDER_SECONDS = 30.0
"""How long a child waits for its starter's order, and for the word to go."""
_HIGH = 64


@dataclass(frozen=True)
class ForkedProcess:
    """The two things that a forked process has and a plainly started one has not.

    `leave` ends it with an exit code, in the place of `os._exit`: a front may wait for that code.
    """

    title: ProcessTitle
    leave: Callable[[int], NoReturn]


ForkedProgram = Callable[[ForkedProcess, list[str]], int]
"""A program of the zygote's table: called with its arguments, it returns its exit code."""


class Child:
    """Serves one starter. `line` leads to the zygote, and is closed when the program begins."""

    def __init__(
        self, connection: socket.socket, line: socket.socket, title: ProcessTitle, secret: bytes
    ) -> None:
        self._connection = connection
        self._line = line
        self._title = title
        self._secret = secret

    def live(self, programs: Mapping[str, ForkedProgram]) -> NoReturn:
        """Take an order, be the program, and exit with its code. If the order fails, say why and exit."""
        self._connection.settimeout(ORDER_SECONDS)
        try:
            order = self._prepared()
            program = programs[order["program"]]
            self._send_ready()
            protocol.expect(self._connection, protocol.GO)
        except (
            *(OSError, ValueError, KeyError, TypeError, EOFError),
            *(protocol.OrderRefused, interpreter.NotLikePlainStart),
        ) as error:
            with suppress(OSError):
                # Close everything first: a starter that reads the refusal finds its locks free.
                interpreter.close_all_but({self._connection.fileno()})
                self._connection.send(f"{type(error).__name__}: {error}".encode()[:1000])
            os._exit(protocol.EXIT_NEVER_BEGUN)
        leave = self._begun(has_front=order["has_front"])
        process = ForkedProcess(self._title, leave)
        interpreter.run(lambda arguments: sys.exit(program(process, arguments)), order["argv"][1:], leave)

    def _prepared(self) -> "protocol.Order":
        """Take over everything from the starter; nothing is done yet."""
        connection = self._connection
        # 1. Only a starter that can read the secret goes on.
        if not hmac.compare_digest(connection.recv(protocol.LONGEST_SECRET), self._secret):
            raise protocol.OrderRefused("a starter that does not know the secret")
        # 2. Its rights have to be ours: they cannot be taken over.
        starter = Peer(connection)
        unlike = inherited.other_rights(starter.pid)
        if unlike is not None:
            raise protocol.OrderRefused(unlike)
        # 3. Only now comes the order, with descriptors that are locks.
        protocol.send(connection, protocol.HERE)
        order, cwd, place, descriptors = protocol.receive_order(connection)
        if not inherited.is_place(place):
            raise protocol.OrderRefused("another namespace or root directory")
        inherited.join_control_group(starter.pid)
        inherited.assume_io_priority(starter.pid)
        # 4. All this was read by the starter's pid: it counts if the pid is still the starter's.
        if starter.has_ended():
            raise protocol.OrderRefused("the starter has exited")
        # 5. Be as a child of the starter.
        os.setsid()
        os.fchdir(cwd)
        self._place(order["targets"], descriptors)
        inherited.assume(order["inherited"])
        interpreter.assume_identity(self._title, order["command"], order["argv"], order["environment"])
        return order

    def _place(self, targets: list[int], descriptors: list[int]) -> None:
        """Put descriptors under the wanted numbers; close all others but the two lines."""
        raised = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, _HIGH) for number in descriptors]
        self._connection, self._line = _raised(self._connection), _raised(self._line)
        for source, target in zip(raised, targets, strict=True):
            os.dup2(source, target, inheritable=target <= 2)
        interpreter.close_all_but({self._connection.fileno(), self._line.fileno(), *targets})

    def _send_ready(self) -> None:
        process = os.pidfd_open(os.getpid())
        try:
            protocol.send(self._connection, protocol.READY, [process])
        finally:
            os.close(process)

    def _begun(self, *, has_front: bool) -> Callable[[int], NoReturn]:
        """Close the lines; return the function that ends this process."""
        self._line.close()
        if has_front:
            return leave_by(self._connection)
        self._connection.close()
        return os._exit


def _raised(connection: socket.socket) -> socket.socket:
    """Return a socket under a number that no order asks for, in the place of this one."""
    timeout = connection.gettimeout()
    with connection:
        raised = socket.socket(fileno=fcntl.fcntl(connection, fcntl.F_DUPFD_CLOEXEC, _HIGH))
    raised.settimeout(timeout)
    return raised
