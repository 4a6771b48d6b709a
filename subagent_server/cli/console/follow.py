"""Watch runs: their journals, their changes, the end of their processes. Ctrl-C ends the watching alone.

All wake by changes in the directories of runs, and by a slow poll. Ctrl-C never ends a run.
"""

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import NoReturn, TypeVar

import click

from subagent_server.cli.console.flags import Flags
from subagent_server.cli.console.interrupts import interrupted
from subagent_server.cli.console.output import OutputClosed, err, is_terminal, reader_is_gone
from subagent_server.cli.console.session import Session
from subagent_server.host.directory import Entry
from subagent_server.host.wake import SLOW_POLL_SECONDS
from subagent_server.host.watch import Watcher
from subagent_server.service.changes import Changes, Wait, wait_until
from subagent_server.service.open_run import open_run
from subagent_server.service.reconcile import Observed
from subagent_server.store.logs import in_order, page
from subagent_server.store.paths import RunPaths

T = TypeVar("T")

AT_MOST_EVERY_SECONDS = 1.0
STOP_WAIT_SECONDS = 12.0
"""A little more than the grace between TERM and KILL."""
_SILENT_SECONDS = 1.5
_PAGE_LINES = 500

Show = Callable[[str, str], None]
"""Called with the id of a run and a new line of its file."""


@dataclass
class _Followed:
    """A run, its file, and how far that was read."""

    run: RunPaths
    file: Entry
    cursor: int
    is_over: bool = False

    def new_lines(self) -> Iterator[str]:
        while True:
            found = page(self.file, self.cursor, _PAGE_LINES)
            self.cursor = found.cursor
            yield from found.lines
            if found.at_end or not found.lines:
                return


class LogFollower:
    """Follows one journal each of some runs, and with `tree` also of the runs that they start.

    It watches before it reads, so no line is lost in between. A context manager: its exit ends the watch.
    """

    def __init__(self, session: Session, *, tree: bool = False) -> None:
        self._session = session
        self._tree = tree
        self._runs: dict[str, _Followed] = {}
        self._changed = threading.Event()
        self._watcher = Watcher()

    def __enter__(self) -> "LogFollower":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watcher.close()

    def add(self, run_id: str, cursor: int) -> None:
        """Follow the journal of a run from a place on."""
        run = self._session.service.store.paths.run(run_id)
        self._runs[run_id] = _Followed(run, run.events, cursor)
        relevant = {entry.name for entry in (run.events, run.meta, run.exit)}

        def hear(name: str) -> None:
            if name in relevant:  # reading a run opens its lock file, which must not wake this loop again
                self._changed.set()

        self._watcher.watch(run.directory, hear)

    def until(self, done: Callable[[Observed], bool], show: Show) -> Observed:
        """Show lines until all runs have ended or `done` is true for one; return the first as it was then.

        Lines that were written until then are shown.

        Raises:
            OutputClosed: the reader of stdout has gone.
            UnknownRun, UnreadableMeta, NotAllowed, StorageFailed: as reading a run does.
            ForeignRoot: a run has not ended and its root is foreign.
        """
        while True:
            self._changed.clear()
            seen = [self._look(each) for each in self._runs.values() if not each.is_over]
            self._add_children()
            lines = ((id_, line) for id_, each in self._runs.items() for line in each.new_lines())
            for run_id, line in lines if len(self._runs) == 1 else in_order(lines):
                show(run_id, line)
            if any(map(done, seen)) or all(each.is_over for each in self._runs.values()):
                return seen[0]
            if reader_is_gone():
                raise OutputClosed
            self._session.service.store.paths.check_ours()  # runs of a foreign root are not waited for
            self._changed.wait(SLOW_POLL_SECONDS)

    def _look(self, followed: _Followed) -> Observed:
        run = followed.run
        observed = open_run(self._session.service, run.run_id, self._session.caller)
        # Nothing more is written if the journal says so, or if the tree is gone: then reconciliation has
        # closed the journal. For a run of another host the status decides.
        followed.is_over = observed.meta.status.is_terminal and (not observed.live or run.journal_has_ended())
        return observed

    def _add_children(self) -> None:
        store = self._session.service.store
        for run_id in list(self._runs) if self._tree else []:
            for child in store.children_of(run_id):
                if child not in self._runs and store.exists(child):
                    self.add(child, 0)  # looked at in the next round, which an unheard change may delay
                    self._changed.set()


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


def until_gone(session: Session, run_ids: list[str]) -> list[Observed]:
    """Return runs that were stopped, when no process of them lives or after 12 s.

    At a terminal, a remark says why this takes longer than a moment.
    """

    def look() -> list[Observed]:
        return [open_run(session.service, run_id, session.caller) for run_id in run_ids]

    def check() -> list[Observed] | None:
        observed = look()
        return None if any(one.live for one in observed) else observed

    if not run_ids:
        return []
    gone = wait_for(session, run_ids, check, _SILENT_SECONDS)
    as_json = click.get_current_context().ensure_object(Flags).as_json
    if gone is None and is_terminal(sys.stderr) and not as_json:
        err("Stopped. The processes end within 12 s: a call of the model may finish, as it is billed anyway.")
    return gone or wait_for(session, run_ids, check, STOP_WAIT_SECONDS - _SILENT_SECONDS) or look()


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
        raise interrupted("only the watching has ended, the runs go on.") from None
    finally:
        changes.close()
