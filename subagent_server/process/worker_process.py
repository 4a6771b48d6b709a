"""The worker's program, started by a shim in a fresh interpreter: the plain way, which always works.

A shim forked from the zygote has another way, which does the same sooner (`ForkedWorker` in
`zygote_server.py`). Standard library only: the shim imports this module.
"""

import json
import os
import signal
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from subagent_server.run.stderr import log

WORKER = (sys.executable, "-E", "-P", "-m", "subagent_server.worker")
"""No PYTHON* variable and no file in the working directory may change the imports of the worker."""
EXIT_GATE_CLOSED = 71
"""The exit code of a worker that has never begun."""
_OPEN = b"!"


def read_package(memory: int) -> dict[str, Any]:
    """Return the package of a run in its memory file, which the shim and the worker read one after the other.

    Raises:
        OSError, ValueError: it cannot be read.
    """
    size = os.fstat(memory).st_size
    data = b""
    while len(data) < size:
        data += os.pread(memory, size - len(data), len(data))
    package: dict[str, Any] = json.loads(data.decode("utf-8", "surrogateescape"))
    return package


@dataclass(frozen=True)
class Invocation:
    """Arguments, environment and descriptors of a worker: it gets `keep` besides 0, 1 and 2.

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
        """Close the gate; a worker that has begun keeps running."""
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
