"""Ctrl-C stops the watching, never the run."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from subagent_server.cli.console.exits import EarlyExit, ExitCode
from subagent_server.cli.console.output import err, is_terminal
from subagent_server.cli.console.session import Session


@contextmanager
def watching(session: Session, *run_ids: str) -> Iterator[None]:
    """Turn Ctrl-C into an early exit that names the commands to watch and to stop the runs.

    Raises:
        EarlyExit: Ctrl-C was pressed.
    """
    try:
        yield
    except KeyboardInterrupt:
        if is_terminal(sys.stderr):
            err("")  # the terminal has written ^C
        run_id = run_ids[0]
        goes_on = f"run {run_id} goes on" if len(run_ids) == 1 else "the runs go on"
        raise EarlyExit(
            ExitCode.INTERRUPTED,
            f"only the watching has ended, {goes_on}: `{session.command('logs', '-f', run_id)}` watches, "
            f"`{session.command('stop', *run_ids)}` stops.",
        ) from None


@contextmanager
def interrupts_held() -> Iterator[Callable[[], None]]:
    """Defer Ctrl-C while a short piece of work must not be interrupted.

    Yields a function that raises the deferred KeyboardInterrupt, to be called once the run id is known.
    """
    came: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        came.append(number)

    def release() -> None:
        if came:
            raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, remember)
    try:
        yield release
    finally:
        signal.signal(signal.SIGINT, before)
