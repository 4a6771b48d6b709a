"""Follow files of runs as they grow: woken by changes in their directories, and by a slow poll."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType

from subagent_server.cli.console.output import OutputClosed, reader_is_gone
from subagent_server.cli.console.session import Session
from subagent_server.host.directory import Entry
from subagent_server.host.wake import SLOW_POLL_SECONDS
from subagent_server.host.watch import Watcher
from subagent_server.service.open_run import open_run
from subagent_server.service.reconcile import Observed
from subagent_server.store.logs import in_order, page
from subagent_server.store.paths import RunPaths

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
            self._show_new(show)
            if any(map(done, seen)) or all(each.is_over for each in self._runs.values()):
                return seen[0]
            if reader_is_gone():
                raise OutputClosed
            self._session.service.store.paths.check_ours()  # runs of a foreign root are not waited for
            self._changed.wait(SLOW_POLL_SECONDS)

    def _look(self, followed: _Followed) -> Observed:
        observed = open_run(self._session.service, followed.run.run_id, self._session.caller)
        followed.is_over = _is_over(followed.run, observed)
        return observed

    def _add_children(self) -> None:
        store = self._session.service.store
        for run_id in list(self._runs) if self._tree else []:
            for child in store.children_of(run_id):
                if child not in self._runs and store.exists(child):
                    self.add(child, 0)  # looked at in the next round, which an unheard change may delay
                    self._changed.set()

    def _show_new(self, show: Show) -> None:
        """Show what came, of several runs in the order of its times."""
        if len(self._runs) == 1:
            for run_id, followed in self._runs.items():
                for line in followed.new_lines():
                    show(run_id, line)
            return
        for run_id, line in in_order(
            (run_id, line) for run_id, followed in self._runs.items() for line in followed.new_lines()
        ):
            show(run_id, line)


def _is_over(run: RunPaths, observed: Observed) -> bool:
    """Whether nothing more will be written.

    The run has ended, and its journal says so or its tree is gone: then reconciliation has closed the
    journal. For a run of another host the status decides.
    """
    return observed.meta.status.is_terminal and (not observed.live or run.journal_has_ended())
