"""What a fork of the zygote does until it is the program that somebody has ordered.

It takes everything from its starter, as a child would have it, and then does what the plain start does.
Standard library only.
"""

import errno
import fcntl
import hmac
import os
import select
import socket
import struct
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from subagent_server.host import circumstances, dumpable
from subagent_server.host.shown import Shown
from subagent_server.launch import handover, image, shim
from subagent_server.launch.leash import put_on_leash
from subagent_server.launch.program import EXIT_GATE_CLOSED
from subagent_server.launch.spare import SpareWorker

ORDER_SECONDS = 10.0
"""How long a forked process waits for its starter's order and for the word to go."""
_CREDENTIALS = struct.Struct("3i")
_HIGH = 64
_LONGEST_SECRET = 64
_INT = 4
_SO_PEERPIDFD = 77
"""What socket(7) has since Linux 6.5, and the socket module has not yet."""


@dataclass(frozen=True)
class Body:
    """What a forked process has that a started one has not. `worker` is its child, if it has one."""

    shown: Shown
    worker: SpareWorker | None = None


Program = Callable[[Body, list[str]], int]
"""What a forked process can be: called with its arguments, it returns its exit code."""


class Newborn:
    """A process just forked, which is nobody yet.

    Where there is a `secret`, it takes an order only from a starter that says this first.
    """

    def __init__(
        self, connection: socket.socket, body: Body, patience: float | None, secret: bytes | None = None
    ) -> None:
        self._connection = connection
        self._body = body
        self._patience = patience
        self._secret = secret

    def live(self, programs: Mapping[str, Program]) -> NoReturn:
        """Take an order, be what is ordered, and leave with its exit code. An order that fails is refused."""
        self._connection.settimeout(self._patience)
        try:
            order = self._prepared()
            program = programs[order["program"]]
            self._show_ready()
            handover.expect(self._connection, handover.GO)
        except (OSError, ValueError, KeyError, TypeError, handover.Refused, image.Unsuitable) as error:
            with suppress(OSError):
                image.close_all_but({self._connection.fileno()})  # who hears of it finds the locks free
                self._connection.send(f"{type(error).__name__}: {error}".encode()[:1000])
            os._exit(EXIT_GATE_CLOSED)
        if order["leashed"]:
            put_on_leash(self._connection)
        else:
            self._connection.close()
        image.run(lambda arguments: sys.exit(program(self._body, arguments)), order["argv"][1:])

    def _show_ready(self) -> None:
        process = os.pidfd_open(os.getpid())
        try:
            handover.send(self._connection, handover.READY, [process])
        finally:
            os.close(process)

    def _prepared(self) -> "handover.Order":
        """Take over everything from the starter; nothing is done yet."""
        connection = self._connection
        self._hear_secret()
        starter, process = peer(connection)[0], _pidfd_of_peer(connection)
        unlike = circumstances.other_rights(starter)
        if unlike is not None:
            raise handover.Refused(unlike)
        handover.send(connection, handover.HERE)
        order, cwd, place, descriptors = handover.receive_order(connection)
        if not circumstances.is_place(place):
            raise handover.Refused("another namespace or root directory")
        if image.wants_own_start(order["environment"]):
            raise handover.Refused("an environment that wants an interpreter of its own")
        circumstances.join_control_group(starter)
        if _has_ended(process):  # what was looked at by its pid may have been another process
            raise handover.Refused("a starter that has left")
        os.setsid()
        os.fchdir(cwd)
        worker = {self._body.worker.descriptor} if self._body.worker else set()
        self._connection = _placed(connection, order["targets"], descriptors, worker)
        circumstances.assume(order["circumstances"])
        image.settle(self._body.shown, order["command"], order["argv"], order["environment"])
        return order

    def _hear_secret(self) -> None:
        if self._secret is None:
            return
        said = self._connection.recv(_LONGEST_SECRET)
        if not hmac.compare_digest(said, self._secret):
            raise handover.Refused("a starter that does not know the secret")


def _placed(
    connection: socket.socket, targets: list[int], descriptors: list[int], own: set[int]
) -> socket.socket:
    """Put descriptors under the numbers that are wanted; close all others but `own` and the connection."""
    timeout = connection.gettimeout()
    raised = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, _HIGH) for number in descriptors]
    kept = fcntl.fcntl(connection.detach(), fcntl.F_DUPFD_CLOEXEC, _HIGH)
    for source, target in zip(raised, targets, strict=True):
        os.dup2(source, target, inheritable=target <= 2)
    image.close_all_but({kept, *targets, *own})
    connection = socket.socket(fileno=kept)
    connection.settimeout(timeout)
    return connection


def peer(connection: socket.socket) -> tuple[int, int]:
    """Return the process and the user at the other end."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    return pid, uid


def _pidfd_of_peer(connection: socket.socket) -> int:
    """Return a descriptor of the process that has made the connection, never of one that has its pid now.

    A kernel before 6.5 cannot say it: there it is the process that has the pid at this moment.
    """
    try:
        raw = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD, _INT)
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            raise
        return os.pidfd_open(peer(connection)[0])
    return int.from_bytes(raw, sys.byteorder)


def _has_ended(process: int) -> bool:
    looks = select.poll()
    looks.register(process, select.POLLIN)
    return bool(looks.poll(0))


def as_command(main: Callable[[list[str]], int]) -> Program:
    """Return the command line."""

    def program(body: Body, arguments: list[str]) -> int:
        if body.worker is not None:
            body.worker.dismiss()
        dumpable.let_others_in()  # as it is if it is started plainly
        return main(arguments)

    return program


def as_worker(main: Callable[[list[str]], object]) -> Program:
    """Return the worker of a run."""

    def program(_: Body, arguments: list[str]) -> int:
        main(arguments)
        return 0

    return program


def as_shim(worker: Callable[[list[str]], object]) -> Program:
    """Return the keeper of a run, whose worker is `worker` in the same image."""

    def program(body: Body, arguments: list[str]) -> int:
        return shim.main(arguments, image.Image(body.shown, worker, body.worker))

    return program
