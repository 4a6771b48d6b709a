"""Forks of the warm process that are made before anybody asks for one, so that nobody waits for the fork.

There is a pair of them: one that will be whatever is ordered, and its child, the worker of the run if a run
is ordered. Each waits at its end of a line to the process that has forked it, gets its work by it, and leaves
when the other end is gone. Standard library only.
"""

import fcntl
import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from subagent_server.host.shown import Shown
from subagent_server.launch import asking, handover, image
from subagent_server.launch.program import GatedWorker, Invocation

_YOURS = b"yours"
_COMMAND = ("subagent-spare",)
_DESCRIPTORS = (0, 1, 2)
_HIGH = 250

Live = Callable[[socket.socket], NoReturn]


class Spare:
    """A process that will serve whoever comes next: the zygote's end of the line."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line

    def take(self, connection: socket.socket) -> bool:
        """Let it serve a connection; False where it is gone. Afterwards it is a spare one no more."""
        with self._line:
            try:
                handover.send(self._line, _YOURS, [connection.fileno()])
            except OSError:
                return False
        return True


def fork_spare(
    shown: Shown,
    prepare: Callable[[], None],
    live: Callable[[socket.socket, "SpareWorker"], NoReturn],
    work: Live,
) -> Spare:
    """Fork a process that will `live` on the connection that it is given, and its child that may `work`.

    It does `prepare` when it has forked that child, before it is given anything.

    Raises:
        OSError: there is no room for a process.
    """

    def wait(line: socket.socket) -> NoReturn:
        shown.command(_COMMAND)
        worker = SpareWorker(*_forked(work))
        prepare()
        try:
            (descriptor,) = handover.expect(line, _YOURS)
        except (OSError, handover.Refused):
            os._exit(0)  # the zygote is gone
        line.close()
        live(socket.socket(fileno=descriptor), worker)

    return Spare(_forked(wait)[1])


class SpareWorker:
    """The child of a process that may become the keeper of a run: a worker that knows nothing of it yet."""

    def __init__(self, pid: int, line: socket.socket) -> None:
        self._pid = pid
        with line:
            self._line = socket.socket(fileno=fcntl.fcntl(line, fcntl.F_DUPFD_CLOEXEC, _HIGH))

    @property
    def descriptor(self) -> int:
        """The descriptor that has to stay open; its number is none that an order asks for."""
        return self._line.fileno()

    def ordered(self, invocation: Invocation) -> GatedWorker | None:
        """Give it its run, for which it gets ready by itself; None where it cannot have it, and is gone."""
        descriptors = [*_DESCRIPTORS, *invocation.keep]
        program = asking.Wanted("worker", *invocation.shown_as(), invocation.environment)
        order = program.order(descriptors, leashed=False)
        blocked = order["circumstances"]["blocked"]
        order["circumstances"]["blocked"] = [number for number in blocked if number not in invocation.heard]
        self._line.settimeout(asking.ANSWER_SECONDS)
        try:
            asking.give_order(self._line, order, descriptors, cwd="/")
        except asking.FAILURES:
            self.dismiss()
            return None
        return _OrderedWorker(self._pid, self._line.fileno(), handover.GO, spare=self)

    def is_ready(self) -> bool:
        """Wait until it has taken its run over; False where it has not, and is gone."""
        try:
            (process,) = handover.expect(self._line, handover.READY)
        except asking.FAILURES:
            self.dismiss()
            return False
        os.close(process)
        return True

    def close(self) -> None:
        """Let go of the line: a worker that has not been told to begin leaves."""
        self._line.close()

    def dismiss(self) -> None:
        """End it and collect it: nobody needs it."""
        self._line.close()
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)


@dataclass(frozen=True, kw_only=True)
class _OrderedWorker(GatedWorker):
    """A worker that was there before its run; its gate is the line to it."""

    spare: SpareWorker

    def is_ready(self) -> bool:
        return self.spare.is_ready()

    def close_gate(self) -> None:
        self.spare.close()


def _forked(live: Live) -> tuple[int, socket.socket]:
    """Fork a process that will `live` at the other end of a line; return its pid and this end."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        pid = os.fork()
        if pid:
            return pid, ours
        try:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            image.close_all_but({*_DESCRIPTORS, theirs.fileno()})  # the zygote's lock among them
            ours.detach()
            live(theirs)
        finally:
            os._exit(1)
    finally:
        theirs.close()
