"""The verb `list_runs`. Its cost follows the number of live runs: of the others only the shown are read.

Standard library only until a run needs more than a look: `subagent ls` starts with this module.

Tested in `tests/cli/test_ls.py` and `tests/service/test_run_case.py`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, Any

from subagent_server.domain.ids import is_run_id
from subagent_server.domain.states import Status
from subagent_server.service.access import USER, Caller
from subagent_server.service.answer_size import those_that_fit
from subagent_server.service.parents import others_sentence
from subagent_server.service.row_reader import RowReader
from subagent_server.service.run_row import RunRow
from subagent_server.store.change_marks import drop_vain
from subagent_server.store.facts import Starter
from subagent_server.store.paths import RootPaths
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
        self._reader = RowReader(self.root, caller)
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
                drop_vain(self.root.run(run_id))
            elif not row.is_over and self._wanted.fits(row.status, row.agent):
                rows.append(row)
        return sorted(rows, key=_urgency)

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
        found = self._reader.read(run_id, is_marked=run_id in self._marked)
        return None if found is None else self._if_heard(*found)

    def _if_heard(self, row: RunRow, starter: Starter | None) -> RunRow | None:
        """Return the row unless the run is another parent's and only the caller's own are wanted."""
        if self._everyone or not self._reader.others.have(starter):
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


def _urgency(row: RunRow) -> int:
    if row.pending_questions:
        return 0
    return _ENDED if row.status is not None and row.status.is_terminal else 1
