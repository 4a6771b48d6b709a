"""How a shim starts the worker's program: a fresh interpreter, the plain way, which always works.

A shim that was forked from a warm process has another way, which does the same sooner (`image.py`). Standard
library only: the shim imports this module.
"""

import os
import signal
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from subagent_server.host.stderr import log

WORKER = (sys.executable, "-E", "-P", "-m", "subagent_server.worker")
"""No PYTHON* variable and no file in the working directory may change what the worker imports."""
EXIT_GATE_CLOSED = 71
"""What a worker leaves with that was never let begin."""
_OPEN = b"!"


@dataclass(frozen=True)
class Invocation:
    """What a worker is started with: the descriptors of `keep` come beside 0, 1 and 2.

    `heard` are signals that it hears, although the process that starts it may keep them back for itself.
    """

    arguments: Sequence[str]
    environment: Mapping[str, str]
    keep: Sequence[int] = ()
    heard: Collection[int] = ()

    def shown_as(self) -> tuple[list[str], list[str]]:
        """Return its command line, and what it has as `sys.argv`."""
        return [*WORKER, *self.arguments], ["subagent_server.worker", *self.arguments]


@dataclass(frozen=True)
class GatedWorker:
    """A worker that begins when it gets a word through its gate, and leaves when the gate is closed."""

    pid: int
    gate: int
    word: bytes = _OPEN

    def is_ready(self) -> bool:
        """Wait until it needs only the word; False where it could not be made the worker, and is gone."""
        return True

    def let_begin(self) -> None:
        """Say the word. Raises OSError: it is gone."""
        os.write(self.gate, self.word)

    def close_gate(self) -> None:
        """Close the gate; what has begun goes on."""
        os.close(self.gate)


def pass_gate(gate: int | None) -> None:
    """Wait for the word to begin; where none comes, leave."""
    if gate is None:
        return
    if os.read(gate, 1) != _OPEN:
        os._exit(EXIT_GATE_CLOSED)
    os.close(gate)


class Program:
    """The worker's program, started by exec."""

    @property
    def is_there(self) -> bool:
        """Whether a process waits already to become the worker."""
        return False

    def start(self, invocation: Invocation, own: Sequence[int]) -> GatedWorker:
        """Start the worker as a child, in a session of its own.

        `own` are descriptors of this process alone: a child that is forked from here closes them first.

        Raises:
            OSError: there is no process for it.
        """
        self.before_fork()
        gate_out, gate_in = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(gate_in)
                for descriptor in own:
                    os.close(descriptor)
                os.setsid()
                signal.pthread_sigmask(signal.SIG_UNBLOCK, invocation.heard)
                self.become(invocation, gate_out)
            except OSError as error:
                log(f"The worker could not be started: {error}")
            finally:
                os._exit(EXIT_GATE_CLOSED)
        os.close(gate_out)
        return GatedWorker(pid, gate_in)

    def rest(self) -> None:
        """Keep nothing ready: it will be long before the worker is started, if ever."""

    def before_fork(self) -> None:
        """Make sure that a fork of this process can become the worker."""

    def become(self, invocation: Invocation, gate: int | None = None) -> NoReturn:
        """Make this process the worker.

        What can be prepared is prepared at once; it begins when the word comes out of `gate`.

        Raises:
            OSError: the program cannot be started.
        """
        pass_gate(gate)
        for descriptor in invocation.keep:
            os.set_inheritable(descriptor, True)
        os.execve(WORKER[0], [*WORKER, *invocation.arguments], dict(invocation.environment))

    def spawn(self, arguments: Sequence[str]) -> int:
        """Start the worker's program as a child, without signals blocked, and return its pid.

        Raises:
            OSError: there is no process for it.
        """
        return os.posix_spawn(WORKER[0], [*WORKER, *arguments], os.environ, setsigmask=[])
