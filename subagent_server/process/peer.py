"""The process at the other end of a connection (unix(7)).

Standard library only: a shim imports this module.
"""

import errno
import os
import socket
import sys

from subagent_server.run import processes
from subagent_server.run.files import can_be_read, held_open

_INT = 4
_SO_PEERPIDFD = 77
"""The option that socket(7) has since Linux 6.5, and the socket module has not yet."""
_NOT_ANSWERING = frozenset("TtZX")
"""States of a process that is stopped, or has ended (proc_pid_stat(5))."""


class Peer:
    """The process that has made a connection: its pid now, and a pidfd that stays with that process.

    Raises:
        OSError: it has ended.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.pid = credentials(connection)[0]
        self._pidfd = _pidfd_of(connection, self.pid)

    def has_ended(self) -> bool:
        """Whether the process has ended; then `pid` may by now be that of another one."""
        return can_be_read(self._pidfd)


def credentials(connection: socket.socket) -> tuple[int, int]:
    """Return pid and user of the process at the other end.

    For a client that is the process that listened. Raises OSError.
    """
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 3 * _INT)
    pid, uid = (int.from_bytes(raw[at : at + _INT], sys.byteorder, signed=True) for at in (0, _INT))
    return pid, uid


def is_user_outside_boxes(connection: socket.socket) -> bool:
    """Whether the other end is a process of this user, and lies in no pid namespace below this one.

    A run's box has its own, and there the user of a process does not show whom it works for.
    """
    try:
        pid, uid = credentials(connection)
        with (
            held_open(_pidfd_of(connection, pid)) as descriptor,
            open(f"/proc/self/fdinfo/{descriptor}", encoding="ascii") as file,  # noqa: PTH123
        ):
            facts = dict(line.split(":", 1) for line in file if ":" in line)
    except OSError:  # it has ended
        return False
    return uid == os.getuid() and facts.get("NSpid", "").split() == [str(pid)]


def can_answer(pid: int) -> bool:
    """Whether there is a process of this pid that is neither stopped nor dead."""
    stat = processes.stat_of(pid)
    return stat is not None and stat.state not in _NOT_ANSWERING


def _pidfd_of(connection: socket.socket, pid: int) -> int:
    """Return a pidfd of the process that has made the connection, never of another one that has its pid now.

    A kernel before 6.5 does not know this process by descriptor. There it is the process that has the pid,
    if its start time is the same before and after it is opened: between the connection and this look the
    pid may still have come again, which is a window of milliseconds behind a secret.
    """
    try:
        raw = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD, _INT)
        return int.from_bytes(raw, sys.byteorder)
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            raise
    before = processes.identify(pid)
    descriptor = os.pidfd_open(pid)
    if before is None or processes.identify(pid) != before:
        os.close(descriptor)
        raise ProcessLookupError("the starter has exited")
    return descriptor
