"""Start the worker as a fork of its shim, without an exec, if the shim is a fork of the zygote.

This way does the same as the plain way (`program.py`), sooner and with shared memory. Standard library only.
"""

import os
import signal
import tempfile
import threading
from collections.abc import Callable, Sequence
from typing import NoReturn

from subagent_server.forkserver.server import Title, close_all_but, run
from subagent_server.launch.program import Invocation, WorkerProgram, pass_gate

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
