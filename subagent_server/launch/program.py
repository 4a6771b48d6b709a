"""How a shim starts the worker's program: a fresh interpreter, the plain way, which always works.

A shim that was forked from a warm process has another way, which does the same sooner (`image.py`). Standard
library only: the shim imports this module.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

WORKER = (sys.executable, "-E", "-P", "-m", "subagent_server.worker")
"""No PYTHON* variable and no file in the working directory may change what the worker imports."""


EXIT_GATE_CLOSED = 71
"""What a worker leaves with that was never let begin."""


def pass_gate(gate: int | None) -> None:
    """Wait for the word that the worker is recorded; without it, leave."""
    if gate is None:
        return
    if os.read(gate, 1) != b"!":
        os._exit(EXIT_GATE_CLOSED)
    os.close(gate)


class Program:
    """The worker's program, started by exec."""

    def before_fork(self) -> None:
        """Make sure that a fork of this process can become the worker."""

    def become(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        keep: Sequence[int],
        gate: int | None = None,
    ) -> NoReturn:
        """Make this process the worker, which gets the descriptors of `keep` beside 0, 1 and 2.

        What can be prepared is prepared at once; it begins when a byte comes out of `gate`, and leaves where
        none comes.

        Raises:
            OSError: the program cannot be started.
        """
        pass_gate(gate)
        for descriptor in keep:
            os.set_inheritable(descriptor, True)
        os.execve(WORKER[0], [*WORKER, *arguments], dict(environment))

    def spawn(self, arguments: Sequence[str]) -> int:
        """Start the worker's program as a child, without signals blocked, and return its pid.

        Raises:
            OSError: there is no process for it.
        """
        return os.posix_spawn(WORKER[0], [*WORKER, *arguments], os.environ, setsigmask=[])
