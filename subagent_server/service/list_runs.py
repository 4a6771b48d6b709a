"""The list of runs. Its cost follows the number of live runs: of the others only what is shown is read.

Standard library only until a run needs more than a look: `subagent ls` starts with this module.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from heapq import merge
from typing import Any

from subagent_server.domain.errors import SubagentError, UnknownRun
from subagent_server.domain.ids import is_run_id
from subagent_server.domain.limits import MAX_LABEL_CHARACTERS, cut, maybe_cut
from subagent_server.domain.states import Status
from subagent_server.host import locks, processes
from subagent_server.launch import slots
from subagent_server.service.access import USER, Caller, NotAllowed
from subagent_server.store.facts import RunFacts, read_facts, tree_is_gone
from subagent_server.store.paths import RootPaths, RunPaths
from subagent_server.store.stored import StoredRuns


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run in a list. A run whose state cannot be read has only its id and `unreadable`."""

    run_id: str
    agent: str | None = None
    label: str | None = None
    status: Status | None = None
    pending_questions: int = 0
    live: bool | None = None
    elapsed_seconds: float | None = None
    waiting_for_slot: bool | None = None
    summary: str | None = None
    unreadable: str | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing is going on in the run, or nobody can say."""
        return self.status is None or (self.status.is_terminal and not self.live)

    def to_wire(self) -> dict[str, Any]:
        """Return the JSON object of the row, without the facts that it lacks."""
        facts = {
            "runId": self.run_id,
            "agent": self.agent,
            "label": self.label,
            "status": None if self.status is None else self.status.value,
            "pendingQuestions": self.pending_questions,
            "live": self.live,
            "elapsedSeconds": self.elapsed_seconds,
            "waitingForSlot": self.waiting_for_slot,
            "summary": self.summary,
            "unreadable": self.unreadable,
        }
        return {name: value for name, value in facts.items() if value is not None}


@dataclass(frozen=True)
class Wanted:
    """Which runs to list: of one of these statuses, where there are any; of this agent, where it is named."""

    statuses: frozenset[Status] = frozenset()
    agent: str | None = None

    def fits(self, row: RunRow) -> bool:
        """Whether a row is wanted."""
        return (not self.statuses or row.status in self.statuses) and self.agent in (None, row.agent)


ANY = Wanted()
_ENDED = 2


class Listing:
    """The runs of a root that are open to a caller, as they are now.

    `active` are those that are not over: first those that need an answer, then those that work, then those
    that are being ended. `over()` yields the others, the newest first, and reads them one by one.
    """

    def __init__(self, root: RootPaths, wanted: Wanted = ANY, caller: Caller = USER) -> None:
        self.root = root.kept_open()
        self._wanted = wanted
        self._caller = caller
        self._no_runs: set[str] = set()
        """Names that stand among those that may be live, and are not runs, or not open to the caller."""
        self._marked = {name for name in root.live_marks() if is_run_id(name)}
        self.active = self._active()

    def every(self) -> Iterator[RunRow]:
        """Yield those that need an answer, those that work, then all others, the newest first."""
        ending = [row for row in self.active if _urgency(row) == _ENDED]
        yield from self.active[: len(self.active) - len(ending)]
        yield from merge(ending, self.over(), key=lambda row: row.run_id, reverse=True)

    def over(self) -> Iterator[RunRow]:
        """Yield the runs that are over, the newest first."""
        seen = {row.run_id for row in self.active} | self._no_runs
        for run_id in self._ids():
            row = None if run_id in seen else self._row(run_id)
            if row is not None and self._wanted.fits(row):
                yield row

    def _active(self) -> list[RunRow]:
        rows = []
        for run_id in sorted(self._marked, reverse=True):
            row = self._row(run_id)
            if row is None:
                self._no_runs.add(run_id)
            elif not row.is_over and self._wanted.fits(row):
                rows.append(row)
        return sorted(rows, key=_urgency)

    def _ids(self) -> Iterator[str]:
        """Yield the ids of the runs that may be wanted, the newest first."""
        if self._wanted == ANY and not self._caller.is_child:
            yield from StoredRuns(self.root).newest_first()
        else:
            from subagent_server.service.search import may_be_wanted  # imports sqlite3, for large roots

            yield from may_be_wanted(self.root, self._wanted, self._caller)

    def _row(self, run_id: str) -> RunRow | None:
        """Return the row of a run, or None where it is none, or not open to the caller."""
        run = self.root.run(run_id)
        try:
            facts = read_facts(run)
        except (FileNotFoundError, NotADirectoryError):
            return None  # a start that never was, or removed
        live = None if facts is None else _settled(run, facts, is_marked=run_id in self._marked)
        if facts is None or live is None:
            return _reconciled_row(self.root, run_id, self._caller)
        if not self._caller.may_open_run(facts.run_id, facts.parent_run_id):
            return None
        return _row(facts, live=live, waits=_waits_for_slot(self.root, run_id, facts.status))


def _settled(run: RunPaths, facts: RunFacts, *, is_marked: bool) -> bool | None:
    """Whether a run lives, where there is nothing to reconcile; None where that takes more than a look."""
    try:
        return _looked(run, facts, is_marked=is_marked)
    except OSError:
        return None


def _looked(run: RunPaths, facts: RunFacts, *, is_marked: bool) -> bool | None:
    """The same. The looks are those of `service/reconcile.py`, in its order."""
    if facts.status.is_terminal:
        return False if not is_marked and tree_is_gone(run) else None
    if facts.host != processes.host_name() or run.result.exists() or run.exit.exists():
        return None
    if facts.expires is not None and facts.expires <= datetime.now(UTC):
        return None
    return True if is_marked and locks.is_held(run.live_lock) else None


def _reconciled_row(root: RootPaths, run_id: str, caller: Caller) -> RunRow | None:
    from subagent_server.service.check_status import look_at  # imports pydantic, which most lists do without

    try:
        observed = look_at(root.root, run_id, caller)
    except (UnknownRun, NotAllowed):
        return None  # removed, or somebody else's
    except SubagentError as error:
        return RunRow(run_id=run_id, unreadable=error.sentence)
    meta = observed.meta
    return RunRow(
        run_id=meta.run_id,
        agent=cut(meta.agent_name, MAX_LABEL_CHARACTERS),
        label=maybe_cut(meta.label, MAX_LABEL_CHARACTERS),
        status=meta.status,
        pending_questions=meta.pending_questions,
        live=observed.live,
        elapsed_seconds=_elapsed(meta.created_at, meta.ended_at),
        waiting_for_slot=_waits_for_slot(root, run_id, meta.status) or None,
        summary=maybe_cut(meta.error.message if meta.error else meta.summary),
    )


def _waits_for_slot(root: RootPaths, run_id: str, status: Status) -> bool:
    return status is Status.READY and slots.is_waiting(root.slots, run_id)


def _row(facts: RunFacts, *, live: bool, waits: bool) -> RunRow:
    return RunRow(
        run_id=facts.run_id,
        agent=cut(facts.agent, MAX_LABEL_CHARACTERS),
        label=maybe_cut(facts.label, MAX_LABEL_CHARACTERS),
        status=facts.status,
        pending_questions=facts.pending_questions,
        live=live,
        elapsed_seconds=_elapsed(facts.created, facts.ended),
        waiting_for_slot=waits or None,
        summary=maybe_cut(facts.what),
    )


def _elapsed(created: datetime, ended: datetime | None) -> float:
    """Return how long a run has been there, in seconds; 0 where a clock was set back."""
    return round(max(0.0, ((ended or datetime.now(UTC)) - created).total_seconds()), 1)


def _urgency(row: RunRow) -> int:
    if row.pending_questions:
        return 0
    return _ENDED if row.status is not None and row.status.is_terminal else 1
