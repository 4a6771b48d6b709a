"""Ctrl-C ends the watching, never the run."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from subagent_server.cli.console.exits import EarlyExit, ExitCode
from subagent_server.cli.console.output import err, is_terminal
from subagent_server.cli.console.session import Session
from subagent_server.domain.errors import SubagentError
from subagent_server.service.open_run import open_run


@contextmanager
def watching(session: Session, *run_ids: str) -> Iterator[None]:
    """Turn Ctrl-C into an early exit that names the commands to watch and to stop the runs.

    Raises:
        EarlyExit: Ctrl-C was pressed.
    """

    def asks(run_id: str) -> bool:
        try:
            return open_run(session.service, run_id, session.caller).meta.pending_questions > 0
        except SubagentError:  # the verb that comes next will say what is wrong with the run
            return False

    try:
        yield
    except KeyboardInterrupt:
        first, asking = run_ids[0], next(filter(asks, run_ids), None)
        goes_on = f"run {first} goes on" if len(run_ids) == 1 else "the runs go on"
        answers = "" if asking is None else f"`{session.command('reply', asking)}` answers its question, "
        raise interrupted(
            f"only the watching has ended, {goes_on}: {answers}`{session.command('logs', '-f', first)}` "
            f"watches, `{session.command('stop', *run_ids)}` stops."
        ) from None


def interrupted(sentence: str) -> EarlyExit:
    """Return the end of a verb whose watching Ctrl-C has ended."""
    if is_terminal(sys.stderr):
        err("")  # the terminal has written ^C
    return EarlyExit(ExitCode.INTERRUPTED, sentence)


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
