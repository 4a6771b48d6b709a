"""The verb `stats`: sums over the runs of a root, by agent and by day.

Tested in `tests/cli/test_stats.py`.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from subagent_server.domain.errors import SubagentError, UnknownRun
from subagent_server.domain.figures import TOKENS, added, known_sum
from subagent_server.domain.records import RunMeta, Usage
from subagent_server.service.reconcile import observe
from subagent_server.store.runs import RunStore


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

    def add(self, run: RunMeta) -> None:
        """Count one run."""
        self.runs += 1
        if run.ended_at is None:
            self.active += 1
        else:
            self.outcomes[run.status.value] += 1
            self.seconds += max(0.0, (run.ended_at - run.created_at).total_seconds())
        if run.usage != Usage():
            self._spend(run.usage)

    def _spend(self, usage: Usage) -> None:
        counts = (
            usage.input_tokens,
            usage.output_tokens,
            usage.cache_read_tokens,
            usage.cache_write_tokens,
        )
        for name, tokens in zip(TOKENS, counts, strict=True):
            self.tokens_of[name], lacks = added(self.tokens_of[name], tokens)
            if lacks:
                self.at_least.add(name)
        before = self.cost_usd if self._has_spent else Decimal(0)
        self.cost_usd, lacks = added(before, usage.cost_usd)
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

    def add(self, run: RunMeta) -> None:
        """Count one run everywhere."""
        day = f"{run.created_at.astimezone(UTC):%Y-%m-%d}"
        for one in (
            self.total,
            self.by_agent.setdefault(run.agent_name, Sum()),
            self.by_day.setdefault(day, Sum()),
        ):
            one.add(run)


def stats(store: RunStore, *, since: datetime | None = None, agent: str | None = None) -> Stats:
    """Add up the runs that began at `since` or later, of all agents or of a single agent. Reads every run."""
    found = Stats()
    for run_id in store.newest_first():
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
