"""The worker's program, started by a shim in a fresh interpreter: the plain way, which always works.

A shim forked from the zygote has another way, which does the same sooner (`ForkedWorker`). Standard
library only: the shim imports this module.
"""

import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from subagent_server.process.zygote_server import Title, close_all_but, run
from subagent_server.run.stderr import log

WORKER = (sys.executable, "-E", "-P", "-m", "subagent_server.worker")
"""No PYTHON* variable and no file in the working directory may change the imports of the worker."""
EXIT_GATE_CLOSED = 71
"""The exit code of a worker that has never begun."""
_OPEN = b"!"


@dataclass(frozen=True)
class Invocation:
    """Arguments, environment and descriptors of a worker: `keep` come beside 0, 1 and 2.

    `unblocked` are signals that the worker receives, although its parent may have blocked them for itself.
    """

    arguments: Sequence[str]
    environment: Mapping[str, str]
    keep: Sequence[int] = ()
    unblocked: Collection[int] = ()

    def command(self) -> list[str]:
        """Return its command line."""
        return [*WORKER, *self.arguments]


@dataclass(frozen=True)
class GatedWorker:
    """A worker that begins when a word comes through its gate, and exits when the gate is closed."""

    pid: int
    gate: int

    def let_begin(self) -> None:
        """Send the word. Raises OSError: the worker is gone."""
        os.write(self.gate, _OPEN)

    def close_gate(self) -> None:
        """Close the gate; a worker that has begun goes on."""
        os.close(self.gate)


def pass_gate(gate: int | None) -> None:
    """Block until the shim writes to the gate; exit if the gate closes first."""
    if gate is None:
        return
    if os.read(gate, 1) != _OPEN:
        os._exit(EXIT_GATE_CLOSED)
    os.close(gate)


class WorkerProgram:
    """The worker's program, started by exec."""

    def start(self, invocation: Invocation, own: Sequence[int]) -> GatedWorker:
        """Start the worker as a child, in a session of its own.

        `own` are descriptors of this process alone: a forked child closes them first.

        Raises:
            OSError: the process could not be made.
        """
        self.before_fork()
        gate_out, gate_in = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(gate_in)  # else the end of the shim would not close the gate
                for descriptor in own:
                    os.close(descriptor)
                os.setsid()
                signal.pthread_sigmask(signal.SIG_UNBLOCK, invocation.unblocked)
                self.become(invocation, gate_out)
            except OSError as error:
                log(f"The worker could not be started: {error}")
            finally:
                os._exit(EXIT_GATE_CLOSED)
        os.close(gate_out)
        return GatedWorker(pid, gate_in)

    def before_fork(self) -> None:
        """Make sure that a fork of this process can become the worker."""

    def become(self, invocation: Invocation, gate: int | None = None) -> NoReturn:
        """Make this process the worker.

        The process may prepare itself at once; the work begins when the word comes out of `gate`.

        Raises:
            OSError: the program cannot be started.
        """
        pass_gate(gate)
        for descriptor in invocation.keep:
            os.set_inheritable(descriptor, True)
        os.execve(WORKER[0], invocation.command(), dict(invocation.environment))

    def spawn(self, arguments: Sequence[str]) -> int:
        """Start the worker's program as a child, without signals blocked, and return its pid.

        Raises:
            OSError: the process could not be made.
        """
        return os.posix_spawn(WORKER[0], [*WORKER, *arguments], os.environ, setsigmask=[])


# -- Start the worker as a fork of its shim, without an exec, if the shim is a fork of the zygote.
#
# This way does the same as the plain way, sooner and with shared memory.


THREAD_SECONDS = 0.2
"""How long a thread that waits for a lock that has just fallen may take to end."""


class ForkedWorker(WorkerProgram):
    """The worker's program, loaded: `main` is called in a forked process instead of an exec."""

    def __init__(self, title: Title, main: Callable[[list[str]], object]) -> None:
        self._title = title
        self._main = main
        self._alone = True

    def before_fork(self) -> None:
        """Let threads end whose work is done. If one stays, the worker is started by exec."""
        for thread in threading.enumerate():
            if thread is not threading.current_thread():
                thread.join(THREAD_SECONDS)
        self._alone = threading.active_count() == 1

    def become(self, invocation: Invocation, gate: int | None = None) -> NoReturn:
        """Make this process the worker; by exec if its environment wants another interpreter."""
        if not self._alone or not self._title.fits(invocation.environment):
            super().become(invocation, gate)
        # 1. Get ready while the shim records this process.
        close_all_but({0, 1, 2, *invocation.keep, *([] if gate is None else [gate])})
        self._title.become(invocation.command(), invocation.environment)
        tempfile.tempdir = None  # the run has a TMPDIR of its own
        # 2. Begin only once it is on record.
        pass_gate(gate)
        run(lambda: self._main(list(invocation.arguments)))

    def spawn(self, arguments: Sequence[str]) -> int:
        """Start the worker's program as a child, by fork."""
        self.before_fork()
        if not self._alone:
            return super().spawn(arguments)
        pid = os.fork()
        if pid == 0:
            try:
                signal.pthread_sigmask(signal.SIG_SETMASK, [])
                self.become(Invocation(arguments, dict(os.environ)))
            finally:
                os._exit(1)
        return pid
