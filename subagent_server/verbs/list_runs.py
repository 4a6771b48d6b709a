"""The verb `list_runs`, and the rows of every other list.

A list reads the runs that may live, known by their marks in `.changes`, and then the others one by one, the
newest first, until it has enough rows. Only a filter, which may skip many, needs a bound.

Tested in `tests/cli/test_ls.py`, `tests/verbs/test_run_case.py`, `tests/cli/test_stats.py`,
`tests/cli/test_compare.py` and `tests/cli/test_trees.py`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from heapq import merge
from itertools import islice, takewhile
from typing import Any

from pydantic import Field

from subagent_server.run import durable
from subagent_server.run.errors import SubagentError, UnknownRun
from subagent_server.run.journal import recorded_usage
from subagent_server.run.paths import RunPaths
from subagent_server.run.records import TOKEN_COUNTS, Failure, Money, Record, RunMeta, StartedBy, Usage
from subagent_server.run.states import TOKENS, Status
from subagent_server.run.store import RunStore, drop_vain, read_state
from subagent_server.verbs.access import USER, Caller, NotAllowed, OtherParents, others_sentence
from subagent_server.verbs.reconcile import Observed, is_over, observe, tree_usage
from subagent_server.verbs.service import Service
from subagent_server.verbs.views import RunRow, elapsed_seconds, row_of, those_that_fit

MAX_SEARCHED = 5_000
"""How many of the newest runs a list looks at, unless it is of every run. Reading a state takes 60 µs."""
ONLY_NEWEST = f"Only the newest {MAX_SEARCHED:,} runs were looked at"
_ENDED = 2


@dataclass(frozen=True)
class RunFilter:
    """Which runs to list: the runs in any of these statuses (if any) and of this agent (if named)."""

    statuses: frozenset[Status] = frozenset()
    agent: str | None = None

    def fits(self, status: Status | None, agent: str | None) -> bool:
        """Whether a run with this status and this agent is listed."""
        return (not self.statuses or status in self.statuses) and self.agent in (None, agent)


ANY = RunFilter()


class RowReader:
    """Reads rows of runs that the caller may open. It remembers which parents have gone."""

    def __init__(self, store: RunStore, caller: Caller) -> None:
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
        try:
            observed = _look(self._store, run_id, self._caller, wanted, is_marked=is_marked)
        except (UnknownRun, NotAllowed):
            return None  # a start that never was, or removed meanwhile
        except SubagentError as error:
            row = RunRow(run_id=run_id, unreadable=error.sentence)
            return (row, None) if wanted.fits(None, None) else None
        if observed is None or not wanted.fits(observed.meta.status, observed.meta.agent_name):
            return None
        meta = observed.meta
        parent = meta.parent_run_id
        started_by = self.others.name(meta.started_by) if parent is None else f"run {parent}"
        return row_of(self._store.paths, observed, started_by=started_by), meta.started_by


def _look(
    store: RunStore, run_id: str, caller: Caller, wanted: RunFilter = ANY, *, is_marked: bool
) -> Observed | None:
    """Return a run as it is now; None if it is not open to the caller, or will never be wanted.

    Raises as `observe` does. Most runs of a list are over, and to reconcile them takes twice as long.
    """
    run = store.paths.run(run_id)
    meta = read_state(run)
    if not caller.may_open(meta) or (
        meta.status.is_terminal and not wanted.fits(meta.status, meta.agent_name)
    ):
        return None
    if is_over(run, meta.status, is_marked=is_marked):
        return Observed(meta, False)
    return observe(store, run_id, caller)


class RunList:
    """The runs of a root that the caller may open, as they are now; without `everyone`, only its own.

    `active` are the unfinished runs: first runs that need an answer, then working runs, then runs being
    ended. `over()` yields the others, the newest first, and reads them one by one. `left_out` are the
    unfinished runs of other parents. `is_cut`: `over()` came to its bound; with `whole` it has none.
    Runs whose ids `named` refuses are not looked at.
    """

    def __init__(
        self,
        store: RunStore,
        wanted: RunFilter = ANY,
        caller: Caller = USER,
        *,
        everyone: bool = True,
        whole: bool = False,
        named: Callable[[str], bool] | None = None,
    ) -> None:
        self.left_out: list[RunRow] = []
        self.is_cut = False
        self._store = store
        self._wanted = wanted
        self._caller = caller
        self._reader = RowReader(store, caller)
        self._everyone = everyone
        self._whole = whole
        self._named = named
        self._marked = set(filter(named, self._store.live_ids()))
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
            return filter(self._named, self._store.newest_first())
        own = {self._caller.run_id, *self._caller.carries_on}
        started = {child for run_id in own for child in self._store.children_of(run_id)}
        return filter(self._named, sorted({self._caller.run_id, *started}, reverse=True))

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
        rows = those_that_fit(self.rows)
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


# -- The verb `stats`: sums over the runs of a root, by agent and by day.


@dataclass
class Sum:
    """Runs added up. `seconds`: how long the ended runs took together. A number without any part is None."""

    runs: int = 0
    outcomes: dict[str, int] = field(default_factory=lambda: {"completed": 0, "failed": 0, "stopped": 0})
    active: int = 0
    seconds: float = 0.0
    usage: Usage = field(default_factory=Usage)

    def add(self, run: RunMeta) -> None:
        """Count one run."""
        self.runs += 1
        if run.ended_at is None or not run.status.is_terminal:  # a state is data: one may lack the other
            self.active += 1
        else:
            self.outcomes[run.status.value] += 1
            self.seconds += max(0.0, (run.ended_at - run.created_at).total_seconds())
        self.usage = self.usage.plus(run.usage.model_copy(update={"at_least": ()}))

    def to_wire(self) -> dict[str, Any]:
        """Return the JSON object of the sum. `atLeast` names the numbers of which a part is not known."""
        usage = self.usage.to_wire()
        known = {name: usage[name] for name in (*TOKENS, "costUsd") if name in usage}
        least = [name for name in self.usage.at_least if known.get(name) is not None]
        return {
            "runs": self.runs,
            **self.outcomes,
            "active": self.active,
            "seconds": round(self.seconds, 1),
            **known,
            **({"atLeast": least} if least else {}),
        }


@dataclass
class Stats:
    """All runs, the runs of each agent, and the runs begun on each day (UTC), all without `unreadable`."""

    total: Sum = field(default_factory=Sum)
    by_agent: dict[str, Sum] = field(default_factory=dict)
    by_day: dict[str, Sum] = field(default_factory=dict)
    unreadable: int = 0

    def add(self, run: RunMeta) -> None:
        """Count one run everywhere."""
        day = f"{run.created_at.astimezone(UTC):%Y-%m-%d}"
        self.total.add(run)
        self.by_agent.setdefault(run.agent_name, Sum()).add(run)
        self.by_day.setdefault(day, Sum()).add(run)

    def to_wire(self) -> dict[str, Any]:
        """Return their JSON object."""
        return {
            "total": self.total.to_wire(),
            "byAgent": [{"agent": name, **sums.to_wire()} for name, sums in sorted(self.by_agent.items())],
            "byDay": [{"day": day, **sums.to_wire()} for day, sums in sorted(self.by_day.items())],
            "unreadable": self.unreadable,
        }


def stats(store: RunStore, *, since: datetime | None = None, agent: str | None = None) -> Stats:
    """Add up the runs that began at `since` or later, of all agents or of a single agent. Reads all these."""
    found = Stats()
    oldest = "" if since is None else f"{since.astimezone(UTC):%Y%m%d-%H%M%S}"  # run ids begin so
    for run_id in takewhile(oldest.__le__, store.newest_first()):
        try:
            run = store.read(run_id)
            if run.ended_at is None:
                run = observe(store, run_id).meta
        except UnknownRun:
            continue  # a start that never was
        except SubagentError:
            found.unreadable += 1
            continue
        if (since is None or run.created_at >= since) and agent in (None, run.agent_name):
            found.add(run)
    return found


# -- The numbers by which runs are compared.


_OWN = ("turns", "toolCalls")
"""Numbers that are those of the run alone."""
_MOST_NAMES = 200
_NAME_CHARACTERS = 200


class RunTotals(Record):
    """The known numbers of a run; tokens and cost are those of its tree, turns and tools its own.

    `model` is None if the journal names no model, a number if it is unknown.
    `at_least` names the sums of which a part is not known. `result` is the text, or the structured value, of
    a run that has one.
    """

    run_id: str
    agent: str
    label: str | None = None
    status: Status
    model: str | None = None
    scripted: bool | None = None
    seconds: float
    turns: int | None = None
    tool_calls: int | None = None
    tools: dict[str, int] = Field(default_factory=dict)
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    cost_usd: Money | None = None
    at_least: tuple[str, ...] | None = None
    error: Failure | None = None
    result: Any = None


def run_totals(service: Service, observed: Observed) -> RunTotals:
    """Return the numbers of a run, those so far if it has not ended.

    Raises:
        UnreadableMeta: its result cannot be read.
    """
    meta, run = observed.meta, service.store.paths.run(observed.meta.run_id)
    own = meta.usage if meta.ended_at is not None else meta.usage.merged(recorded_usage(run))
    tree = tree_usage(service.store, meta) if service.store.children_of(meta.run_id) else own
    model, tools = _from_journal(run)
    tokens: dict[str, int | None] = {name: getattr(tree, name) for name in TOKEN_COUNTS}
    result = service.store.read_result(meta.run_id) if meta.ended_at is not None else None
    scripted = None
    with suppress(SubagentError):
        scripted = service.store.read_request(meta.run_id).scripted
    return RunTotals(
        run_id=meta.run_id,
        agent=meta.agent_name,
        label=meta.label,
        status=meta.status,
        model=model,
        scripted=scripted,
        seconds=elapsed_seconds(meta.started_at or meta.created_at, meta.ended_at),
        turns=own.turns,
        tool_calls=own.tool_calls,
        tools=tools,
        **(tokens if any(tokens.values()) else {}),
        cost_usd=tree.cost_usd,
        at_least=tuple(name for name in tree.at_least if name not in _OWN) or None,
        error=meta.error,
        result=None if result is None else (result.output if result.has_output else result.text or None),
    )


def _from_journal(run: RunPaths) -> tuple[str | None, dict[str, int]]:
    """Return the model, and how often each tool was called; a journal is data, so names are bounded."""
    model: str | None = None
    tools: Counter[str] = Counter()
    with suppress(OSError):  # one that is damaged shows no more
        for event in durable.records(run.events):
            if event.get("type") == "run_started" and isinstance(event.get("model"), str):
                model = event["model"][:_NAME_CHARACTERS]
            elif event.get("type") == "tool_call":
                tools[str(event.get("toolName"))[:_NAME_CHARACTERS]] += 1
    return model, dict(tools.most_common(_MOST_NAMES))


# -- Whole trees of runs for people: each run reconciled, with the cost of the run and all runs below.


@dataclass(frozen=True)
class Node:
    """A run, the cost of it and all runs below, and its children in the order of their starts."""

    run: RunRow
    with_descendants: Usage = field(default_factory=Usage)
    children: "list[Node]" = field(default_factory=list)

    def walk(self, depth: int = 0) -> "Iterator[tuple[int, Node]]":
        """Yield this run and all below it with their depth, a parent before its children."""
        yield depth, self
        for child in self.children:
            yield from child.walk(depth + 1)

    def to_wire(self) -> dict[str, Any]:
        """Return the JSON object of the run, with those of its `children`."""
        above = self.run.parent_run_id
        return {
            **self.run.to_wire(),
            **({} if above is None else {"parentRunId": above}),
            "withDescendants": self.with_descendants.to_wire(),
            "children": [child.to_wire() for child in self.children],
        }


def trees_of(service: Service, run_ids: Iterable[str], caller: Caller = USER) -> list[Node]:
    """Return the whole trees of these runs, in the order of the first of each, as far as the caller sees."""
    trees: dict[str, Node] = {}
    for run_id in run_ids:
        top = _top(service, run_id, caller)
        if top not in trees and (tree := _tree(service, top, caller)) is not None:
            trees[top] = tree
    return list(trees.values())


def _top(service: Service, run_id: str, caller: Caller) -> str:
    """Return the highest run above this run that can be read and is open to the caller."""
    with suppress(SubagentError):
        for above in service.store.above(service.store.read(run_id)):
            if not caller.may_open(above):
                break
            run_id = above.run_id
    return run_id


def _tree(service: Service, run_id: str, caller: Caller, depth: int = -1) -> Node | None:
    """Return a run with all below it; None if there is none, or the caller may not see it."""
    try:
        observed = _look(service.store, run_id, caller, is_marked=service.store.is_marked(run_id))
        if observed is None:
            return None
        usage = tree_usage(service.store, observed.meta)
    except (UnknownRun, NotAllowed):
        return None
    except SubagentError as error:
        return None if caller.is_child else Node(RunRow(run_id=run_id, unreadable=error.sentence))
    meta = observed.meta
    row = row_of(service.store.paths, observed)
    below = service.store.children_of(run_id) if meta.depth > depth else []  # else the marks lead in a circle
    children = filter(None, (_tree(service, child, caller, meta.depth) for child in below))
    return Node(row, usage, list(children))
