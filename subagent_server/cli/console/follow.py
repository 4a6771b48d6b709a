"""Follow a log of a run as it grows: woken by changes in its directory, and by a slow poll."""

import threading
from collections.abc import Callable, Iterator
from types import TracebackType

from subagent_server.cli.console.output import OutputClosed, reader_is_gone
from subagent_server.cli.console.session import Session
from subagent_server.host.directory import Entry
from subagent_server.host.wake import SLOW_POLL_SECONDS
from subagent_server.host.watch import Watcher
from subagent_server.service.open_run import open_run
from subagent_server.service.reconcile import Observed
from subagent_server.store.logs import has_ended, page

_PAGE_LINES = 500


class LogFollower:
    """Follows one file of a run: shows each new line, and knows when there will be no more.

    It watches before it reads, so no line is lost in between. A context manager: its exit ends the watch.
    """

    def __init__(self, session: Session, run_id: str, file: Entry, cursor: int) -> None:
        self._session = session
        self._run = session.service.store.paths.run(run_id)
        self._file = file
        self._cursor = cursor
        self._changed = threading.Event()
        self._watcher = Watcher()
        self._relevant = {entry.name for entry in (file, self._run.meta, self._run.exit)}

    def __enter__(self) -> "LogFollower":
        self._watcher.watch(self._run.directory, self._hear)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watcher.close()

    def until(self, done: Callable[[Observed], bool], show: Callable[[str], None]) -> Observed:
        """Show lines until the run has ended or `done` is true for it; lines written until then are shown.

        Raises:
            OutputClosed: the reader of stdout has gone.
            UnknownRun, UnreadableMeta, NotAllowed, StorageFailed: as reading a run does.
            ForeignRoot: the run has not ended and its root is foreign.
        """
        while True:
            self._changed.clear()
            observed = open_run(self._session.service, self._run.run_id, self._session.caller)
            enough = self._is_over(observed) or done(observed)
            for line in self._new_lines():
                show(line)
            if enough:
                return observed
            if reader_is_gone():
                raise OutputClosed
            self._session.service.store.paths.check_ours()  # runs of a foreign root are not waited for
            self._changed.wait(SLOW_POLL_SECONDS)

    def _is_over(self, observed: Observed) -> bool:
        """Whether nothing more will be written.

        The run has ended, and its journal says so or its tree is gone: then reconciliation has closed the
        journal. For a run of another host the status decides.
        """
        return observed.meta.status.is_terminal and (not observed.live or has_ended(self._run))

    def _new_lines(self) -> Iterator[str]:
        while True:
            found = page(self._file, self._cursor, _PAGE_LINES)
            self._cursor = found.cursor
            yield from found.lines
            if found.at_end or not found.lines:
                return

    def _hear(self, name: str) -> None:
        if name in self._relevant:  # reading a run opens its lock file, which must not wake this loop again
            self._changed.set()
