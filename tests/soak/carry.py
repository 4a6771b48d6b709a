"""`python -m tests.soak.carry --rounds N --seed N`: kill runs at random moments, and carry each to its end.

Each effect has to have happened once, and the end has to be that of a run that nobody killed.
"""

import argparse
import random
import secrets
import shutil
import signal
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from subagent_server.extensions.simulator import Simulator
from subagent_server.process.launcher import LocalLauncher
from subagent_server.process.marks import read_shim
from subagent_server.run import processes
from subagent_server.run.records import RunMeta
from subagent_server.run.states import Status
from subagent_server.settings import read_settings
from subagent_server.verbs.continue_run import ContinueOrder, continue_run
from subagent_server.verbs.end_run import stop
from subagent_server.verbs.reconcile import observe
from subagent_server.verbs.service import open_service
from subagent_server.verbs.start import StartOrder, start
from tests.helpers.api_checks import check_strictly
from tests.helpers.truth import examine_all
from tests.helpers.wait import wait_for
from tests.soak.audit import Audit
from tests.soak.carried import STEPS, Careful, marks, prompt, result
from tests.soak.field import Field
from tests.soak.settle import unsettled

_SECONDS = 120.0
"""How long anything may take on a busy machine."""
_JOURNAL_BYTES = 9_000
"""About what the journal of a run has when it is done: a kill comes when it has grown to a part of this."""
_LANES = 2
_STEP_SECONDS = 0.1
_WAYS = {"worker": 6, "worker and shim": 3, "stop": 1}


@dataclass
class Verdict:
    """What came of it."""

    counts: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)

    def report(self) -> str:
        """Return the counts and what was found, for people."""
        counts = ", ".join(f"{name} {count}" for name, count in sorted(self.counts.items()))
        return "\n".join(
            [counts, *(f"VIOLATION {what}" for what in self.findings), f"{len(self.findings)} violations"]
        )


def carry(rounds: int, seed: int, home: Path) -> Verdict:
    """Kill `rounds` times in `home`, an empty directory, and return what came of it."""
    verdict, model = Verdict(), Careful()
    with ExitStack() as stack:
        audit = Audit(home / "audit.jsonl")
        stack.callback(audit.close)
        check_strictly()
        ground = Field(home, stack.enter_context(Simulator(model)).base_url, audit)
        stack.callback(ground.clear)
        with ThreadPoolExecutor(_LANES) as pool:
            lanes = [_Lane(ground, seed, number, rounds // _LANES + 1) for number in range(_LANES)]
            for lane, found in zip(lanes, pool.map(_Lane.work, lanes), strict=True):
                verdict.findings += found
                verdict.counts += lane.counts
        verdict.findings += unsettled(ground)
        for lane in lanes:
            lane.service.launcher.reap()
        verdict.findings += [f"{f.run_id}: {f.what}" for f in examine_all(ground.store, ground.environment)]
    verdict.counts |= {"told as unknown": len(model.unknown), "told as not begun": len(model.not_begun)}
    return verdict


class _Lane:
    """One run after another, each killed until its dice say otherwise."""

    def __init__(self, ground: Field, seed: int, number: int, kills: int) -> None:
        self.counts: Counter[str] = Counter()
        self.service = open_service(
            read_settings(environment=ground.environment, cwd=ground.work), LocalLauncher()
        )
        self._ground = ground
        self._chance = random.Random(f"{seed}/{number}")
        self._number = number
        self._kills = kills
        self._never = threading.Event()

    def work(self) -> list[str]:
        """Kill as often as was ordered, and return what should not be."""
        findings: list[str] = []
        done = 0
        while done < self._kills and not findings:
            place = self._ground.effects / f"{self._number}-{self.counts['runs']}"
            kills, found = self._run(place, self._kills - done)
            done += kills
            findings += found
        return findings

    def _run(self, place: Path, most: int) -> tuple[int, list[str]]:
        """Take one run to its end; return how often it was killed, and what is wrong with it."""
        order = StartOrder("free", prompt(place))
        run_id = start(self.service, order).run_id
        self.counts["runs"] += 1
        kills = 0
        while kills < most and self._chance.random() < (0.9 if kills == 0 else 0.5):
            self._end(run_id)
            if self._over(run_id).status is Status.COMPLETED:
                self.counts["too late"] += 1
                break
            kills += 1
            run_id = continue_run(self.service, ContinueOrder(run_id)).run_id
        meta = self._over(run_id)
        return kills, list(self._wrong(meta, place))

    def _end(self, run_id: str) -> None:
        """Kill or stop a run at a moment of its life; one that is faster than the dice ends by itself."""
        run = self._ground.store.paths.run(run_id)
        moment = self._chance.randrange(_JOURNAL_BYTES)
        (way,) = self._chance.choices(list(_WAYS), list(_WAYS.values()))

        def has_come() -> bool:
            size = run.events.stat().st_size if run.events.exists() else 0
            return size >= moment or self._meta(run_id).status.is_terminal

        wait_for(has_come, _SECONDS, f"run {run_id} to come to {moment} bytes")
        self._never.wait(self._chance.uniform(0, _STEP_SECONDS))
        self.counts[way] += 1
        if way == "stop":
            stop(self.service, run_id, "the soak wants it")
            return
        shim = read_shim(run)
        for name in ("shim", "worker") if way == "worker and shim" else ("worker",):
            identity = processes.Identity.from_json(shim.get(name))
            if identity is not None:
                processes.send_signal(identity, signal.SIGKILL)

    def _over(self, run_id: str) -> RunMeta:
        store = self._ground.store
        wait_for(lambda: observe(store, run_id).meta.status.is_terminal, _SECONDS, f"the end of run {run_id}")
        return self._meta(run_id)

    def _meta(self, run_id: str) -> RunMeta:
        return self._ground.store.read(run_id)

    def _wrong(self, meta: RunMeta, place: Path) -> Iterator[str]:
        last = self._ground.store.read_result(meta.run_id)
        if meta.status is not Status.COMPLETED or last is None:
            yield f"{meta.run_id} is {meta.status.value}: {meta.error}"
        elif last.text != result(place):
            yield f"{meta.run_id} came to {last.text!r}"
        elif sorted(marks(place), key=int) != [str(number) for number in range(STEPS)]:
            yield f"the effects of {meta.run_id} are {marks(place)}"
        if marks(Path(f"{place}.overlaps")):
            yield f"two workers of {meta.run_id} and those before it worked at once"


def main(arguments: list[str] | None = None) -> int:
    """Run one soak and print what came of it. Its directory is kept where something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.carry", description="Kill, carry on, judge.")
    parser.add_argument("--rounds", type=int, default=200, help="how many kills (default 200)")
    parser.add_argument("--seed", type=int, default=None, help="of all dice; a random one is printed")
    options = parser.parse_args(arguments)
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    print(f"soak of runs that are carried on: seed {seed}, {options.rounds} kills", flush=True)
    home = Path(tempfile.mkdtemp(prefix="subagent-carry-"))
    verdict = carry(options.rounds, seed, home)
    print(verdict.report())
    if verdict.findings:
        print(f"everything is in {home}; again: make soak-continue ROUNDS={options.rounds} SEED={seed}")
        return 1
    shutil.rmtree(home)
    return 0


if __name__ == "__main__":
    sys.exit(main())
