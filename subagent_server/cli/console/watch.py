"""Looking again whenever a run changes: for `--watch`. Never more than once a second."""

import sys
import threading
from collections.abc import Callable
from typing import NoReturn

from subagent_server.cli.console.exits import ExitCode, Leave
from subagent_server.cli.console.output import OutputClosed, is_terminal, reader_is_gone, talk
from subagent_server.cli.console.session import Session
from subagent_server.host.wake import SLOW_POLL_SECONDS
from subagent_server.service.changes import Changes

AT_MOST_EVERY_SECONDS = 1.0


def watch(session: Session, show: Callable[[], None]) -> NoReturn:
    """Call `show` at once, after changes of live runs, and at a slow poll, until somebody ends it.

    Raises:
        Leave: Ctrl-C came.
        OutputClosed: nobody reads any more.
    """
    changes, changed = Changes(session.service.store), threading.Event()
    heard = False
    try:
        while True:
            if not heard and session.service.store.paths.is_ours:  # watching makes no runs root
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
            talk("")  # the terminal has written ^C
        raise Leave(ExitCode.INTERRUPTED, "only the watching has ended, the runs go on.") from None
    finally:
        changes.close()
