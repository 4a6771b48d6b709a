"""The verb `list_runs`, and the rows of every other list.

A list reads the runs that may live, known by their marks in `.changes`, and then the others one by one, the
newest first, until it has enough rows. Only a filter, which may pass over many, needs a bound.

Tested in `tests/cli/test_ls.py` and `tests/service/test_run_case.py`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from typing import Any

from subagent_server.domain.errors import SubagentError, UnknownRun
from subagent_server.domain.records import StartedBy
from subagent_server.domain.states import Status
from subagent_server.service.access import USER, Caller, NotAllowed
from subagent_server.service.answer_size import those_that_fit
from subagent_server.service.parents import OtherParents, others_sentence
from subagent_server.service.reconcile import is_over, observe
from subagent_server.service.run_row import RunRow, row_of
from subagent_server.store.change_marks import drop_vain
from subagent_server.store.runs import RunStore

MAX_SEARCHED = 5_000
"""How many of the newest runs a list looks at, unless it is of every run. Reading a state takes 60 µs."""
ONLY_NEWEST = f"Only the newest {MAX_SEARCHED:,} runs were looked at"
_ENDED = 2


@dataclass(frozen=True)
class RunFilter:
    """Which runs to list: the runs in any of these statuses (if given) and of this agent (if named)."""

    statuses: frozenset[Status] = frozenset()
    agent: str | None = None

    def fits(self, status: Status | None, agent: str | None) -> bool:
        """Whether a run with this status and this agent is listed."""
        return (not self.statuses or status in self.statuses) and self.agent in (None, agent)


ANY = RunFilter()


class RowReader:
    """Reads rows of runs that the caller may open. It remembers which parents have gone."""

    def __init__(self, store: RunStore, caller: Caller = USER) -> None:
        self.others = OtherParents(caller)
        self._store = store
        self._caller = caller

    def read(
        self, run_id: str, *, is_marked: bool, wanted: RunFilter = ANY
    ) -> tuple[RunRow, StartedBy | None] | None:
        """Return the row of a run as it is now, with its starter; None if it is not to be listed.

        It is not to be listed if there is no such run, if it is not open to the caller, or not wanted.
        `is_marked`: whether it has a mark among the runs that may live.
        """
        run = self._store.paths.run(run_id)
        live: bool | None = False
        try:
            meta = self._store.read_state(run)
            if not self._caller.may_open(meta):
                return None
            if meta.status.is_terminal and not wanted.fits(meta.status, meta.agent_name):
                return None  # it will never fit, so its processes need no look
            if not is_over(run, meta.status, is_marked=is_marked):
                observed = observe(self._store, run_id, self._caller)
                meta, live = observed.meta, observed.live
        except (UnknownRun, NotAllowed):
            return None  # a start that never was, or removed meanwhile
        except SubagentError as error:
            row = RunRow(run_id=run_id, unreadable=error.sentence)
            return (row, None) if wanted.fits(None, None) else None
        if not wanted.fits(meta.status, meta.agent_name):
            return None
        started_by = self.others.name_of_parent(meta.started_by, meta.parent_run_id)
        return row_of(self._store.paths, meta, live, started_by=started_by), meta.started_by


class RunList:
    """The runs of a root that the caller may open, as they are now; without `everyone`, only those it hears.

    `active` are the unfinished runs: first runs that need an answer, then working runs, then runs being
    ended. `over()` yields the others, the newest first, and reads them one by one. `left_out` are the
    unfinished runs of other parents. `is_cut` says that `over()` came to its bound; with `whole` it has none.
    """

    def __init__(
        self,
        store: RunStore,
        wanted: RunFilter = ANY,
        caller: Caller = USER,
        *,
        everyone: bool = True,
        whole: bool = False,
    ) -> None:
        self.left_out: list[RunRow] = []
        self.is_cut = False
        self._store = store
        self._wanted = wanted
        self._caller = caller
        self._reader = RowReader(self._store, caller)
        self._everyone = everyone
        self._whole = whole
        self._marked = set(self._store.live_ids())
        self._seen: set[str] = set()
        self.active = self._active()

    def every(self) -> Iterator[RunRow]:
        """Yield the runs that need an answer, the working runs, then all others, the newest first."""
        ending = [row for row in self.active if _urgency(row) == _ENDED]
        yield from self.active[: len(self.active) - len(ending)]
        yield from merge(ending, self.over(), key=lambda row: row.run_id, reverse=True)

    def over(self) -> Iterator[RunRow]:
        """Yield the runs that are over, the newest first."""
        for looked_at, run_id in enumerate(self._ids()):
            if looked_at == MAX_SEARCHED and not self._whole:
                self.is_cut = True
                return
            row = None if run_id in self._seen else self._row(run_id, self._wanted)
            if row is not None:
                yield row

    def _active(self) -> list[RunRow]:
        rows = []
        for run_id in sorted(self._marked, reverse=True):
            row = self._row(run_id, ANY)  # the runs of other parents are counted, whatever is wanted
            if row is None or not row.is_over:
                self._seen.add(run_id)
            if row is None:
                drop_vain(self._store.paths.run(run_id))
            elif not row.is_over and self._wanted.fits(row.status, row.agent):
                rows.append(row)
        return sorted(rows, key=_urgency)

    def _ids(self) -> Iterator[str]:
        """Yield the ids of the runs that may be open to the caller, the newest first."""
        if self._caller.run_id is None:
            return self._store.newest_first()
        own = {self._caller.run_id, *self._caller.carries_on}
        started = {child for run_id in own for child in self._store.children_of(run_id)}
        return iter(sorted({self._caller.run_id, *started}, reverse=True))

    def _row(self, run_id: str, wanted: RunFilter) -> RunRow | None:
        found = self._reader.read(run_id, is_marked=run_id in self._marked, wanted=wanted)
        if found is None:
            return None
        row, starter = found
        if self._everyone or not self._reader.others.own(starter):
            return row
        if not row.is_over:
            self.left_out.append(row)
        return None


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


def list_runs(
    store: RunStore,
    *,
    status: Status | None = None,
    agent: str | None = None,
    limit: int = 20,
    caller: Caller = USER,
    everyone: bool = True,
) -> ListedRuns:
    """Return rows of runs: runs that need an answer, then live runs, then the newest of the others.

    A run with an unreadable state is listed as such. Without `everyone` the runs of other parents are a
    count.
    """
    wanted = RunFilter(frozenset() if status is None else frozenset({status}), agent)
    listing = RunList(store, wanted, caller, everyone=everyone)
    rows = list(islice(listing.every(), limit))
    working = [row for row in listing.left_out if row.status is not None and not row.status.is_terminal]
    asking = sum(row.pending_questions > 0 for row in working)
    behind = f"{ONLY_NEWEST}: `subagent ls --all` looks at every one." if listing.is_cut else None
    return ListedRuns(rows, others_sentence(len(working), asking), behind)


def _urgency(row: RunRow) -> int:
    if row.pending_questions:
        return 0
    return _ENDED if row.status is not None and row.status.is_terminal else 1
