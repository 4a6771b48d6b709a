"""Ctrl-C stops the watching, never the run."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from subagent_server.cli.console.exits import ExitCode, Leave
from subagent_server.cli.console.output import is_terminal, talk
from subagent_server.cli.console.session import Session


@contextmanager
def watching(session: Session, *run_ids: str) -> Iterator[None]:
    """Turn Ctrl-C into the end of the watching, with the commands that go on watching and that stop.

    Raises:
        Leave: Ctrl-C came.
    """
    try:
        yield
    except KeyboardInterrupt:
        if is_terminal(sys.stderr):
            talk("")  # the terminal has written ^C
        run_id = run_ids[0]
        goes_on = f"run {run_id} goes on" if len(run_ids) == 1 else "the runs go on"
        raise Leave(
            ExitCode.INTERRUPTED,
            f"only the watching has ended, {goes_on}: `{session.command('logs', '-f', run_id)}` watches, "
            f"`{session.command('stop', *run_ids)}` stops.",
        ) from None


@contextmanager
def interrupts_held() -> Iterator[Callable[[], None]]:
    """Put Ctrl-C off while something short must not be done by halves.

    Gives what raises the KeyboardInterrupt that came meanwhile, for when it can be told what was done.
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
