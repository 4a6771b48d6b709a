"""Ctrl-C stops the watching, never the run."""

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
    try:
        yield
    except KeyboardInterrupt:
        if is_terminal(sys.stderr):
            err("")  # the terminal has written ^C
        raise EarlyExit(ExitCode.INTERRUPTED, _goes_on(session, run_ids)) from None


def _goes_on(session: Session, run_ids: tuple[str, ...]) -> str:
    """Return the sentence on runs that are not watched any more, with the command that answers a question."""
    first = run_ids[0]
    asking = next((run_id for run_id in run_ids if _asks(session, run_id)), None)
    goes_on = f"run {first} goes on" if len(run_ids) == 1 else "the runs go on"
    answers = "" if asking is None else f"`{session.command('reply', asking)}` answers its question, "
    return (
        f"only the watching has ended, {goes_on}: {answers}`{session.command('logs', '-f', first)}` watches, "
        f"`{session.command('stop', *run_ids)}` stops."
    )


def _asks(session: Session, run_id: str) -> bool:
    try:
        return open_run(session.service, run_id, session.caller).meta.pending_questions > 0
    except SubagentError:  # the verb that comes next will say what is wrong with the run
        return False


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
