"""The verb `list_runs`. Its cost follows the number of live runs: of the others only the shown are read.

Standard library only until a run needs more than a look: `subagent ls` starts with this module.

Tested in `tests/cli/test_ls.py` and `tests/service/test_run_case.py`.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING

from subagent_server.domain.errors import ForeignRoot, SubagentError, UnknownRun
from subagent_server.domain.ids import is_run_id
from subagent_server.domain.states import Status
from subagent_server.service.access import USER, Caller, NotAllowed
from subagent_server.service.run_case import RunCase, case_of, is_over
from subagent_server.service.run_row import RunRow, row_of_facts, row_of_state
from subagent_server.store.facts import RunFacts, read_facts
from subagent_server.store.paths import RootPaths, RunPaths
from subagent_server.store.stored import StoredRuns

if TYPE_CHECKING:
    from subagent_server.service.context import Service


@dataclass(frozen=True)
class RunFilter:
    """Which runs to list: the runs in any of these statuses (if given) and of this agent (if named)."""

    statuses: frozenset[Status] = frozenset()
    agent: str | None = None

    def fits(self, status: Status | None, agent: str | None) -> bool:
        """Whether a run with this status and this agent is listed."""
        return (not self.statuses or status in self.statuses) and self.agent in (None, agent)


ANY = RunFilter()
_ENDED = 2


class RunList:
    """The runs of a root that the caller may open, as they are now.

    `active` are the unfinished runs: first runs that need an answer, then working runs, then runs being
    ended. `over()` yields the others, the newest first, and reads them one by one.
    """

    def __init__(self, root: RootPaths, wanted: RunFilter = ANY, caller: Caller = USER) -> None:
        self.root = root.kept_open()
        self._wanted = wanted
        self._caller = caller
        self._no_runs: set[str] = set()
        """Names that stand among those that may be live, and are not runs, or not open to the caller."""
        self._marked = {name for name in root.live_marks() if is_run_id(name)}
        self.active = self._active()

    def every(self) -> Iterator[RunRow]:
        """Yield the runs that need an answer, the working runs, then all others, the newest first."""
        ending = [row for row in self.active if _urgency(row) == _ENDED]
        yield from self.active[: len(self.active) - len(ending)]
        yield from merge(ending, self.over(), key=lambda row: row.run_id, reverse=True)

    def over(self) -> Iterator[RunRow]:
        """Yield the runs that are over, the newest first."""
        seen = {row.run_id for row in self.active} | self._no_runs
        for run_id in self._ids():
            row = None if run_id in seen else self._row(run_id)
            if row is not None and self._wanted.fits(row.status, row.agent):
                yield row

    def _active(self) -> list[RunRow]:
        rows = []
        for run_id in sorted(self._marked, reverse=True):
            row = self._row(run_id)
            if row is None:
                self._no_runs.add(run_id)
                self._drop_mark_of_removed(run_id)
            elif not row.is_over and self._wanted.fits(row.status, row.agent):
                rows.append(row)
        return sorted(rows, key=_urgency)

    def _drop_mark_of_removed(self, run_id: str) -> None:
        """Remove the mark of a run whose directory is gone: a start makes the directory before the mark."""
        with suppress(OSError, ForeignRoot):
            if not self.root.run(run_id).files.exists():
                self.root.change_mark(run_id).unlink()

    def _ids(self) -> Iterator[str]:
        """Yield the ids of the runs that may be wanted, the newest first."""
        if self._wanted == ANY and not self._caller.is_child:
            yield from StoredRuns(self.root).newest_first()
        else:
            from subagent_server.service.search import may_be_wanted  # imports sqlite3, for large roots

            wanted = self._wanted
            yield from may_be_wanted(self.root, wanted.statuses, wanted.agent, self._caller)

    def _row(self, run_id: str) -> RunRow | None:
        """Return the row of a run, or None if it is not a run, or not open to the caller."""
        run = self.root.run(run_id)
        try:
            facts = read_facts(run)
        except (FileNotFoundError, NotADirectoryError):
            return None  # a start that never was, or removed
        live = None if facts is None else _live_at_a_look(run, facts, is_marked=run_id in self._marked)
        if facts is None or live is None:
            return _reconciled_row(self.root, run_id, self._caller)
        if not self._caller.may_open_run(facts.run_id, facts.parent_run_id):
            return None
        return row_of_facts(self.root, facts, live=live)


def list_runs(
    service: "Service",
    *,
    status: Status | None = None,
    agent: str | None = None,
    limit: int = 20,
    caller: Caller = USER,
) -> list[RunRow]:
    """Return rows of runs: runs that need an answer, then live runs, then the newest of the others.

    A run with an unreadable state is listed as such.
    """
    wanted = RunFilter(frozenset() if status is None else frozenset({status}), agent)
    return list(islice(RunList(service.store.paths, wanted, caller).every(), limit))


def _live_at_a_look(run: RunPaths, facts: RunFacts, *, is_marked: bool) -> bool | None:
    """Whether a run lives, if there is nothing to reconcile; None if that takes more than a look."""
    try:
        if is_over(run, facts.status, is_marked=is_marked):
            return False
        lives = case_of(run, facts.status, facts.host) is RunCase.LIVES
    except OSError:
        return None
    expired = facts.expires is not None and facts.expires <= datetime.now(UTC)
    return True if lives and is_marked and not expired else None


def _reconciled_row(root: RootPaths, run_id: str, caller: Caller) -> RunRow | None:
    from subagent_server.service.open_run import open_run_below  # imports pydantic, which most lists avoid

    try:
        observed = open_run_below(root.root, run_id, caller)
    except (UnknownRun, NotAllowed):
        return None  # removed, or somebody else's
    except SubagentError as error:
        return RunRow(run_id=run_id, unreadable=error.sentence)
    return row_of_state(root, observed.meta, observed.live)


def _urgency(row: RunRow) -> int:
    if row.pending_questions:
        return 0
    return _ENDED if row.status is not None and row.status.is_terminal else 1
