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
from typing import TYPE_CHECKING, Any

from subagent_server.domain.errors import ForeignRoot, SubagentError, UnknownRun
from subagent_server.domain.ids import is_run_id
from subagent_server.domain.states import Status
from subagent_server.service.access import USER, Caller, NotAllowed
from subagent_server.service.answer_size import those_that_fit
from subagent_server.service.parents import OtherParents, others_sentence, starter_of
from subagent_server.service.run_case import RunCase, case_of, is_over
from subagent_server.service.run_row import RunRow, row_of_facts, row_of_state
from subagent_server.store.facts import RunFacts, Starter, read_facts
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
MAX_PASSED = 1_000
"""How many ended runs of other parents are passed over; the runs behind them are not looked at."""
_ENDED = 2


@dataclass(frozen=True)
class ListedRuns:
    """Rows of runs, and sentences on the runs that are not among them."""

    rows: list[RunRow]
    other_parents: str | None = None
    behind: str | None = None
    """A sentence on runs that were not looked at."""

    def to_wire(self) -> dict[str, Any]:
        """Return the JSON object of the list. Rows beyond the size of an answer are counted."""
        others = {} if self.other_parents is None else {"otherParents": self.other_parents}
        rows = those_that_fit(self.rows, RunRow.to_wire)
        left = len(self.rows) - len(rows)
        more = f"{left} more did not fit: ask by status or agent." if left else None
        omitted = " ".join(filter(None, (more, self.behind)))
        return {
            "runs": [row.to_wire() for row in rows],
            **others,
            **({"omitted": omitted} if omitted else {}),
        }


class RunList:
    """The runs of a root that the caller may open, as they are now; without `everyone`, only those it hears.

    `active` are the unfinished runs: first runs that need an answer, then working runs, then runs being
    ended. `over()` yields the others, the newest first, and reads them one by one. `left_out` are the
    unfinished runs of other parents, `passed` is the number of the ended ones that were met.
    """

    def __init__(
        self, root: RootPaths, wanted: RunFilter = ANY, caller: Caller = USER, *, everyone: bool = True
    ) -> None:
        self.root = root.kept_open()
        self.left_out: list[RunRow] = []
        self.passed = 0
        self._wanted = wanted
        self._caller = caller
        self._others = OtherParents(caller)
        self._everyone = everyone
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
            if self.passed >= MAX_PASSED:
                return
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
            return self._reconciled_row(run_id)
        if not self._caller.may_open_run(facts.run_id, facts.parent_run_id):
            return None
        started_by = self._others.name_of_parent(facts.started_by, facts.parent_run_id)
        row = row_of_facts(self.root, facts, live=live, started_by=started_by)
        return self._if_heard(row, facts.started_by)

    def _reconciled_row(self, run_id: str) -> RunRow | None:
        from subagent_server.service.open_run import open_run_below  # pydantic, which most lists avoid

        try:
            observed = open_run_below(self.root.root, run_id, self._caller)
        except (UnknownRun, NotAllowed):
            return None  # removed, or somebody else's
        except SubagentError as error:
            return RunRow(run_id=run_id, unreadable=error.sentence)
        meta, starter = observed.meta, starter_of(observed.meta)
        started_by = self._others.name_of_parent(starter, meta.parent_run_id)
        return self._if_heard(row_of_state(self.root, meta, observed.live, started_by=started_by), starter)

    def _if_heard(self, row: RunRow, starter: Starter | None) -> RunRow | None:
        """Return the row unless the run is another parent's and only the caller's own are wanted."""
        if self._everyone or not self._others.have(starter):
            return row
        if row.is_over:
            self.passed += 1
        else:
            self.left_out.append(row)
        return None


def list_runs(
    service: "Service",
    *,
    status: Status | None = None,
    agent: str | None = None,
    limit: int = 20,
    caller: Caller = USER,
    everyone: bool = True,
) -> ListedRuns:
    """Return rows of runs: runs that need an answer, then live runs, then the newest of the others.

    A run with an unreadable state is listed as such. Without `everyone` the runs of other parents are a
    count, and the search ends behind 1,000 that have ended.
    """
    wanted = RunFilter(frozenset() if status is None else frozenset({status}), agent)
    listing = RunList(service.store.paths, wanted, caller, everyone=everyone)
    rows = list(islice(listing.every(), limit))
    working = [row for row in listing.left_out if row.status is not None and not row.status.is_terminal]
    asking = sum(row.pending_questions > 0 for row in working)
    return ListedRuns(rows, others_sentence(len(working), asking), _behind(listing))


def _behind(listing: RunList) -> str | None:
    if listing.passed < MAX_PASSED:
        return None
    return (
        f"Runs older than {listing.passed:,} ended ones of other parents were not looked at: "
        "list_runs(all=true) shows all."
    )


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


def _urgency(row: RunRow) -> int:
    if row.pending_questions:
        return 0
    return _ENDED if row.status is not None and row.status.is_terminal else 1
