"""The verb `stats`: sums over the runs of a root, by agent and by day.

Tested in `tests/cli/test_stats.py`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from subagent_server.domain.errors import SubagentError, UnknownRun
from subagent_server.domain.figures import TOKENS, added, known_sum
from subagent_server.domain.states import Status
from subagent_server.service.open_run import open_run_below
from subagent_server.store.facts import RunFacts, Spent, read_facts
from subagent_server.store.index import Ended, open_index
from subagent_server.store.paths import RootPaths
from subagent_server.store.stored import StoredRuns


@dataclass
class Sum:
    """Runs added up. `seconds`: how long the ended runs took together. A figure without any part is None."""

    runs: int = 0
    outcomes: dict[str, int] = field(default_factory=lambda: {"completed": 0, "failed": 0, "stopped": 0})
    active: int = 0
    seconds: float = 0.0
    tokens_of: dict[str, int | None] = field(default_factory=lambda: dict.fromkeys(TOKENS, 0))
    cost_usd: Decimal | None = None
    at_least: set[str] = field(default_factory=set)
    _has_spent: bool = False

    @property
    def tokens(self) -> int | None:
        """Tokens of every kind, as far as they are known."""
        return known_sum(*self.tokens_of.values())

    def add(self, run: Ended) -> None:
        """Count one run."""
        self.runs += 1
        if run.status.is_terminal:
            self.outcomes[run.status.value] += 1
            self.seconds += run.seconds
        else:
            self.active += 1
        if run.spent != Spent():
            self._spend(run.spent)

    def _spend(self, spent: Spent) -> None:
        told = (spent.input_tokens, spent.output_tokens, spent.cache_read_tokens, spent.cache_write_tokens)
        for name, tokens in zip(TOKENS, told, strict=True):
            self.tokens_of[name], lacks = added(self.tokens_of[name], tokens)
            if lacks:
                self.at_least.add(name)
        before = self.cost_usd if self._has_spent else Decimal(0)
        self.cost_usd, lacks = added(before, _money(spent.cost_usd))
        if lacks:
            self.at_least.add("costUsd")
        self._has_spent = True

    def to_wire(self) -> dict[str, Any]:
        """Return the JSON object of the sum. `atLeast` names the figures of which a part is not known."""
        known = {**self.tokens_of, "costUsd": self.cost_usd}
        least = [name for name in known if name in self.at_least and known[name] is not None]
        return {
            "runs": self.runs,
            **self.outcomes,
            "active": self.active,
            "seconds": round(self.seconds, 1),
            **self.tokens_of,
            **({} if self.cost_usd is None else {"costUsd": f"{self.cost_usd:f}"}),
            **({"atLeast": least} if least else {}),
        }


@dataclass
class Stats:
    """All runs, the runs of each agent, and the runs begun on each day (UTC), all without `unreadable`."""

    total: Sum = field(default_factory=Sum)
    by_agent: dict[str, Sum] = field(default_factory=dict)
    by_day: dict[str, Sum] = field(default_factory=dict)
    unreadable: int = 0

    def add(self, run: Ended) -> None:
        """Count one run everywhere."""
        day = f"{datetime.fromtimestamp(run.created, UTC):%Y-%m-%d}"
        for one in (
            self.total,
            self.by_agent.setdefault(run.agent, Sum()),
            self.by_day.setdefault(day, Sum()),
        ):
            one.add(run)


def stats(root: RootPaths, *, since: datetime | None = None, agent: str | None = None) -> Stats:
    """Add up the runs that began at `since` or later, of all agents or of a single agent."""
    found, root = Stats(), root.kept_open()
    begin = 0.0 if since is None else since.timestamp()
    for run in _each(root, begin):
        if run is None:
            found.unreadable += 1
        elif run.created >= begin and agent in (None, run.agent):
            found.add(run)
    return found


def _each(root: RootPaths, begin: float) -> Iterator[Ended | None]:
    """Yield the runs of a root, in a large root from its index; None for an unreadable run."""
    stored = StoredRuns(root)
    if stored.is_large():
        with open_index(root) as index:
            ids = index.unknown()
            yield from index.ended(begin)
    else:
        ids = list(stored.newest_first())
    for run_id in ids:
        try:
            yield _one(root, run_id)
        except UnknownRun:
            continue  # a start that never was
        except SubagentError:
            yield None


def _one(root: RootPaths, run_id: str) -> Ended:
    try:
        facts = read_facts(root.run(run_id))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UnknownRun(run_id, root.root) from error
    return _read(root, run_id) if facts is None or facts.ended is None else _of(facts)


def _of(facts: RunFacts) -> Ended:
    seconds = 0.0 if facts.ended is None else max(0.0, (facts.ended - facts.created).total_seconds())
    return Ended(facts.status, facts.agent, facts.created.timestamp(), seconds, facts.spent)


def _read(root: RootPaths, run_id: str) -> Ended:
    """Return a run that has not ended, or whose state needs all of the reading."""
    meta = open_run_below(root.root, run_id).meta
    usage, ended = meta.usage, meta.ended_at or meta.created_at
    spent = Spent(
        usage.input_tokens,
        usage.output_tokens,
        usage.cache_read_tokens,
        usage.cache_write_tokens,
        None if usage.cost_usd is None else f"{usage.cost_usd:f}",
    )
    seconds = max(0.0, (ended - meta.created_at).total_seconds())
    return Ended(Status(meta.status), meta.agent_name, meta.created_at.timestamp(), seconds, spent)


def _money(text: str | None) -> Decimal | None:
    try:
        amount = None if text is None else Decimal(text)
    except InvalidOperation:
        return None
    return amount if amount is not None and amount.is_finite() else None
