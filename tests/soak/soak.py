"""One soak, from the first start to the verdict."""

import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from subagent_server.extensions.simulator import Simulator
from tests.helpers.api_checks import check_strictly
from tests.soak.audit import Audit
from tests.soak.excuses import Excuses
from tests.soak.field import Field, effects_of
from tests.soak.judge import Judge
from tests.soak.killer import Killer
from tests.soak.orders import Leader
from tests.soak.parties import Parties
from tests.soak.settle import unsettled, untrue
from tests.soak.upgrades import Upgrader

PAUSE_SECONDS = 0.9
"""Between two kills, on average. A killed worker costs about two seconds of a core until there is another."""
_SECONDS_A_KILL = 15.0
"""The bound; beside 20,000 calls of other tests one takes 8."""


@dataclass(frozen=True)
class Plan:
    """How much of everything."""

    seed: int
    rounds: int = 60
    servers: int = 2
    live_target: int = 7


@dataclass
class Verdict:
    """What a soak came to."""

    seed: int
    seconds: float = 0.0
    upgrades: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    deaths_at_points: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    excused: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)

    def report(self) -> str:
        """Return the counts and what was found, for people."""
        lines = [
            f"seed {self.seed}, {self.seconds:.0f} s",
            f"{self.upgrades} upgrades of the installation",
            f"{self.kills.total()} kills from outside: {_listed(self.kills)}",
            f"{self.deaths_at_points.total()} deaths at points: {_listed(self.deaths_at_points)}",
            f"came of it: {_listed(self.counts)}",
            f"excused (tests/soak/excuses.py says why): {_listed(self.excused)}",
            *(f"VIOLATION {finding}" for finding in self.findings),
            f"{len(self.findings)} violations",
        ]
        return "\n".join(lines)


def soak(plan: Plan, home: Path) -> Verdict:
    """Run a soak in `home`, an empty directory, and return what came of it."""
    began = time.monotonic()
    verdict, excuses = Verdict(plan.seed), Excuses()
    with ExitStack() as stack:
        audit = Audit(home / "audit.jsonl")
        stack.callback(audit.close)
        leader = Leader(effects_of(home), audit)
        check_strictly()
        simulator = stack.enter_context(Simulator(leader))
        ground = Field(home, simulator.base_url, audit)
        stack.callback(ground.clear)
        verdict.kills = _kill_and_settle(plan, ground, verdict.findings, excuses)
        judge = Judge(ground, leader, excuses)
        verdict.findings += judge.findings()
        verdict.excused = excuses.used
        verdict.upgrades = ground.installation.number
    verdict.deaths_at_points, verdict.counts = judge.deaths_at_points, judge.counts
    if verdict.kills.total() < plan.rounds:
        verdict.findings.append(f"only {verdict.kills.total()} of {plan.rounds} kills in the time there was")
    verdict.seconds = time.monotonic() - began
    return verdict


def _kill_and_settle(plan: Plan, ground: Field, findings: list[str], excuses: Excuses) -> Counter[str]:
    """Let everybody live and the killer work, until nothing is left; return whom it has killed."""
    parties = Parties(ground, str(plan.seed), plan.live_target)
    killer = Killer(ground, str(plan.seed), plan.rounds, PAUSE_SECONDS)
    upgrader = Upgrader(ground, str(plan.seed), plan.rounds, killer.killed.total)
    parties.begin(plan.servers)
    upgrader.start()
    try:
        killer.work(_SECONDS_A_KILL * plan.rounds + 60)
        parties.closing.set()
        findings += untrue(ground, excuses)
    finally:
        parties.closing.set()
        parties.over.set()
        upgrader.over.set()
        parties.join()
        upgrader.join()
    findings += unsettled(ground)
    if upgrader.done < upgrader.planned:
        findings.append(f"only {upgrader.done} of {upgrader.planned} upgrades in the time there was")
    return killer.killed


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"
