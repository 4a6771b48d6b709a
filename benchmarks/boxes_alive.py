"""Many runs with a box each, alive at once: what they weigh, and how soon each is gone after its stop.

The model of each starts a job in its shell, which sleeps in the box, and then asks: so box, shell and job are
alive until the run is stopped. A run that does not come so far, that ends by itself, or that leaves a
placeholder fails the benchmark.

`python -m benchmarks.boxes_alive [RUNS]`
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.alive import CROWDED, FEW, obstacle
from benchmarks.bench_world import BenchWorld, bench_world
from benchmarks.memory import available_mib, proportional_mib
from benchmarks.scale import Scale
from benchmarks.start import ready_zygote
from benchmarks.table import Bar, Line, table
from subagent_server.process.marks import read_shim
from subagent_server.run import processes
from subagent_server.run.states import Status
from subagent_server.verbs.end_run import stop
from subagent_server.verbs.start import StartOrder, start
from tests.helpers.truth import examine_all
from tests.helpers.turns import Turn, asks, shell

TITLE = "Many boxes alive at once"
RESERVE_MIB = 1_024.0
"""Memory that stays free for others: with less, no more runs are started."""
LANES = 4
TIMES = 20
"""How many are weighed, and how many stops are measured, among few and among many."""
SHARE = 3
"""As a part of all benchmarks it measures a third of the runs, because 900 take five minutes and 21 GiB."""
MOST_MIB = 27.0
"""What each of 900 runs may weigh on a machine of 24 GiB."""
MANY_ENOUGH = 100
"""Among fewer, the pages that all share are no small part of the weight of each."""
_LOOK_SECONDS = 0.05
_BUSY_SECONDS = 300.0
_AGENT = "---\nname: sleeper\ndescription: Of the benchmark.\nsandbox: bwrap\n---\nYou sleep.\n"


def model(body: dict[str, Any]) -> Turn:
    """Let a job sleep in the shell, then ask."""
    return shell("sleep 3600 &") if len(body["messages"]) == 1 else asks("May I go on?")


@dataclass
class Sleepers:
    """The runs of a world, each with a box in a directory of its own."""

    world: BenchWorld
    present: list[str] = field(default_factory=list)
    count: int = 0

    async def come(self) -> None:
        """Start a run, if there is room; return when its job runs in its box and it waits for an answer."""
        if available_mib() < RESERVE_MIB:
            return
        self.count += 1
        directory = self.world.directory / "work" / str(self.count)
        directory.mkdir(parents=True)
        run_id = await asyncio.to_thread(self._started, directory)
        async with asyncio.timeout(_BUSY_SECONDS):
            while not self.is_there(run_id):
                await asyncio.sleep(_LOOK_SECONDS)
        self.present.append(run_id)

    def _started(self, directory: Path) -> str:
        return start(self.world.service, StartOrder("sleeper", "Sleep.", cwd=str(directory))).run_id

    async def leave(self) -> float:
        """Stop the run that came first; return after how many milliseconds its last process was gone."""
        run_id = self.present.pop(0)
        mark = self.world.service.store.paths.change_mark(run_id)  # its shim removes it last
        began = time.perf_counter()
        await asyncio.to_thread(stop, self.world.service, run_id)
        while mark.exists():
            await asyncio.sleep(0.002)
        return (time.perf_counter() - began) * 1000

    def own(self, run_id: str) -> list[processes.Identity]:
        """Return shim and worker of a run."""
        facts = read_shim(self.world.service.store.paths.run(run_id))
        found = [processes.Identity.from_json(facts.get(who)) for who in ("shim", "worker")]
        return [identity for identity in found if identity is not None]

    def box(self, run_id: str) -> list[processes.Identity]:
        """Return the processes of the box of a run: twice bubblewrap, the shell, the command."""
        return processes.descendants([each.pid for each in self.own(run_id)[1:]])

    def is_there(self, run_id: str) -> bool:
        """Whether a run waits, with its job alive in its box."""
        if self.world.service.store.read(run_id).status is not Status.WAITING:
            return False
        return any(b"sleep" in processes.command_of(each.pid) for each in self.box(run_id))

    def faults(self) -> Iterator[str]:
        """Yield what is wrong when all have been stopped."""
        store = self.world.service.store
        stopped = [run_id for run_id in store.run_ids() if store.read(run_id).status is Status.STOPPED]
        if len(stopped) != self.count:
            yield f"{self.count} have come, and {len(stopped)} were stopped"
        for finding in examine_all(store, self.world.environment):
            yield f"run {finding.run_id}: {finding.what}"
        work = self.world.directory / "work"
        yield from (f"{path} is left" for path in work.glob("*/*"))


def measure(scale: Scale) -> list[Line]:
    """Return the lines; raises as `among` does."""
    return among(max(FEW + 1, scale.alive // SHARE))


def among(wanted: int) -> list[Line]:
    """Return the lines of so many runs.

    Raises:
        RuntimeError: a run ended by itself, or something is left of one.
    """
    if why := obstacle(wanted):
        return [_alive_line(0, wanted, f"not measured: {why}")]
    with bench_world(model, []) as world:
        (world.directory / "agents" / "sleeper.md").write_text(_AGENT, encoding="utf-8")
        return asyncio.run(_measured(world, wanted))


async def _measured(world: BenchWorld, wanted: int) -> list[Line]:
    await ready_zygote(world)
    sleepers, times = Sleepers(world), min(TIMES, wanted // 2)
    before = available_mib()
    await _in_lanes(sleepers.come, FEW)
    few = [await _replaced(sleepers) for _ in range(times)]
    await _in_lanes(sleepers.come, wanted - FEW)
    lived = sum(map(sleepers.is_there, sleepers.present))
    fallen = (before - available_mib()) / lived
    sampled = sleepers.present[:: max(1, lived // times)]
    own = [_weight(sleepers.own(run_id)) for run_id in sampled]
    boxes = [_weight(sleepers.box(run_id)) for run_id in sampled]
    many = [await _replaced(sleepers) for _ in range(times)]
    await _in_lanes(sleepers.leave, len(sleepers.present))
    if faults := list(sleepers.faults()):
        raise RuntimeError(f"{len(faults)} faults: " + "; ".join(faults[:20]))
    zygote, alive = [proportional_mib(world.zygote())], f"{lived} alive"
    both = [one + other for one, other in zip(own, boxes, strict=True)]
    bars = (Bar("p50", MOST_MIB),) if lived >= MANY_ENOUGH else ()
    return [
        _alive_line(lived, wanted, f"{RESERVE_MIB:,.0f} MiB of memory stay for others"),
        Line(f"PSS of shim and worker, {alive}", own, "the zygote", zygote, unit="MiB"),
        Line(f"PSS of bubblewrap, shell and job, {alive}", boxes, "the zygote", zygote, unit="MiB"),
        Line(f"PSS of both together, {alive}: 900 in 24 GiB", both, "the zygote", zygote, bars, "MiB"),
        Line(f"memory that {lived} runs took, each", [fallen], "the zygote", zygote, unit="MiB"),
        Line(f"stop until the last process is gone, {alive}", many, f"{FEW} alive", few, because=CROWDED),
    ]


async def _replaced(sleepers: Sleepers) -> float:
    """Let one more come, then stop the first; return what that took, in milliseconds."""
    await sleepers.come()
    return await sleepers.leave()


async def _in_lanes(step: Callable[[], Awaitable[object]], number: int) -> None:
    """Take a step so often, a few at a time."""
    left = iter(range(number))

    async def lane() -> None:
        for _ in left:
            await step()

    async with asyncio.TaskGroup() as group:
        for _ in range(LANES):
            group.create_task(lane())


def _weight(identities: Sequence[processes.Identity]) -> float:
    return sum(map(proportional_mib, identities))


def _alive_line(lived: int, wanted: int, because: str) -> Line:
    bars = (Bar("ratio", 1, at_least=True),)
    what = "alive at once, each with a box, stopped and gone without a trace"
    return Line(what, [float(lived)], "wanted", [float(wanted)], bars, "runs", because)


if __name__ == "__main__":
    print(table(among(int(sys.argv[1]) if len(sys.argv) > 1 else 40)))
