"""Waiting for changes of runs: once, until a condition holds, and over and over for `--watch`."""

import asyncio
import sys
import threading
from collections.abc import Callable, Sequence
from typing import NoReturn, TypeVar

from subagent_server.cli.console.exits import EarlyExit, ExitCode
from subagent_server.cli.console.output import OutputClosed, err, is_terminal, reader_is_gone
from subagent_server.cli.console.session import Session
from subagent_server.host.wake import SLOW_POLL_SECONDS
from subagent_server.service.changes import Changes, Wait, wait_until

T = TypeVar("T")

AT_MOST_EVERY_SECONDS = 1.0


def wait_for(
    session: Session, run_ids: Sequence[str], check: Callable[[], T | None], seconds: float
) -> T | None:
    """Return the first value of `check` that is not None, or None after `seconds`.

    `check` is called in a thread, at once and after each change of one of these runs.
    """
    changes = Changes(session.service.store)
    try:
        wait = Wait(seconds=seconds, run_ids=frozenset(run_ids))
        return asyncio.run(wait_until(changes, check, wait))
    finally:
        changes.close()


def watch(session: Session, show: Callable[[], None]) -> NoReturn:
    """Call `show` at once, after changes of live runs and on a slow poll, until Ctrl-C.

    It is called at most once a second.

    Raises:
        EarlyExit: Ctrl-C came.
        OutputClosed: the reader of stdout has gone.
    """
    changes, changed = Changes(session.service.store), threading.Event()
    heard = False
    try:
        while True:
            if not heard and session.service.store.paths.is_ours:  # watching must not create a runs root
                changes.subscribe(lambda _: changed.set())
                heard = True
            changed.clear()
            show()
            threading.Event().wait(AT_MOST_EVERY_SECONDS)
            if reader_is_gone():
                raise OutputClosed
            changed.wait(SLOW_POLL_SECONDS - AT_MOST_EVERY_SECONDS)
    except KeyboardInterrupt:
        if is_terminal(sys.stderr):
            err("")  # the terminal has written ^C
        raise EarlyExit(ExitCode.INTERRUPTED, "only the watching has ended, the runs go on.") from None
    finally:
        changes.close()
