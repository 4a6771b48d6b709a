"""900 runs alive at once: each asks, is answered and completes; the cost of one compared with one of ten.

Every run has to end with the word that only it was given; a run that is lost, mixed up or left behind fails
the benchmark. If the machine has no memory for more, fewer runs come, and the line says so.

`python -m benchmarks.alive [RUNS]`
"""

import asyncio
import resource
import sys
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.bench_world import BenchWorld, bench_world
from benchmarks.crowd import AGENT, Cost, Crowd, Guest, model
from benchmarks.memory import Worked, available_mib, proportional_mib
from benchmarks.scale import Scale
from benchmarks.start import ready_zygote
from benchmarks.table import Bar, Line, table

TITLE = "Many runs alive at once"
FEW = 10
TIMES = 30
"""How many leave and come, one after the other, to be measured."""
RESERVE_MIB = 1_024.0
"""Memory that stays free for others: with less, no more runs are started."""
GROWTH = (Bar("ratio", 1.5),)
CROWDED = "an ending shim reads all processes, and kernel threads walk the pages that all share"
_RUN_MIB = 30.0
_FILES_A_RUN, _PROCESSES_A_RUN, _SPARE = 2, 6, 500
_SAMPLES = 20
_IDLE_SECONDS = 5.0


@dataclass
class Costs:
    """What single runs cost while so many others are alive."""

    came: list[Cost] = field(default_factory=list)
    left: list[Cost] = field(default_factory=list)
    idle: list[float] = field(default_factory=list)
    """The processor time of a run that waits, in milliseconds a minute."""


@dataclass
class Weights:
    """What the runs weigh while all are alive, in MiB."""

    pss: list[float]
    zygote: float
    fallen: float
    """By how much the memory that is available has fallen for each."""


def measure(scale: Scale) -> list[Line]:
    """Return the lines.

    Raises:
        RuntimeError: a run was lost, or got the answer of another, or something is left of one.
    """
    if why := obstacle(scale.alive):
        return [_alive_line(0, scale.alive, f"not measured: {why}")]
    with bench_world(model, [AGENT]) as world:
        return asyncio.run(_measured(world, scale.alive))


def obstacle(wanted: int) -> str:
    """Return why this machine cannot even try, or nothing; a low limit of files is raised."""
    if (free := available_mib()) < RESERVE_MIB + FEW * _RUN_MIB:
        return f"{free:,.0f} MiB of memory are available, and {RESERVE_MIB:,.0f} stay for others"
    files = wanted * _FILES_A_RUN + _SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < files:
        return f"a process may open {hard} files, and {files} are needed"
    if soft != resource.RLIM_INFINITY and soft < files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    tasks = wanted * _PROCESSES_A_RUN + _SPARE
    allowed, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    most = int(Path("/proc/sys/kernel/pid_max").read_text(encoding="ascii"))
    if most < tasks or (allowed != resource.RLIM_INFINITY and allowed < tasks):
        return f"{min(most, allowed) if allowed >= 0 else most} processes may be, and {tasks} are needed"
    return ""


async def _measured(world: BenchWorld, wanted: int) -> list[Line]:
    await ready_zygote(world)
    async with world.client() as client:
        crowd = Crowd(world, client)
        before = available_mib()
        few = await _costs_among(crowd, FEW)
        many = await _costs_among(crowd, wanted)
        lived = crowd.waiting()
        if lived != len(crowd.present):
            raise RuntimeError(f"{len(crowd.present)} runs should wait at once, and {lived} do")
        weights = _weighed(world, crowd, before)
        await crowd.all_leave()
    if faults := list(crowd.faults()):
        raise RuntimeError(f"{len(faults)} faults: " + "; ".join(faults[:20]))
    return _lines(lived, wanted, few, many, weights)


async def _costs_among(crowd: Crowd, number: int) -> Costs:
    """Let so many be there, then one after the other leave and another come; return what those cost.

    So each gets memory that another has just given back, among few as among many: if it is new to a
    virtual machine, it takes several times as long to come by. And the run that leaves has waited for as long
    among few as among many.
    """
    costs = Costs()
    await crowd.many_come(number - len(crowd.present), _is_room)
    for _ in range(TIMES + 1):
        costs.left.append(await crowd.leave(-FEW))
        costs.came.append(await crowd.come())
    del costs.left[0], costs.came[0]
    costs.idle += await _idle(crowd)
    return costs


async def _idle(crowd: Crowd) -> list[float]:
    """Return what some of those who are there work in a minute in which nothing happens, in milliseconds."""
    sampled = [Worked(crowd.processes_of(guest)) for guest in _sample(crowd)]
    await asyncio.sleep(_IDLE_SECONDS)
    for each in sampled:
        each.look()
    return [each.milliseconds * 60 / _IDLE_SECONDS for each in sampled]


def _is_room() -> bool:
    return available_mib() >= RESERVE_MIB


def _sample(crowd: Crowd) -> list[Guest]:
    return crowd.present[:: max(1, len(crowd.present) // _SAMPLES)]


def _weighed(world: BenchWorld, crowd: Crowd, before: float) -> Weights:
    return Weights(
        pss=[sum(map(proportional_mib, crowd.processes_of(guest))) for guest in _sample(crowd)],
        zygote=proportional_mib(world.zygote()),
        fallen=(before - available_mib()) / len(crowd.present),
    )


def _alive_line(lived: int, wanted: int, because: str) -> Line:
    bars = (Bar("ratio", 1, at_least=True),)
    what = "alive at once: asked, answered, completed right"
    return Line(what, [float(lived)], "wanted", [float(wanted)], bars, "runs", because)


def _lines(lived: int, wanted: int, few: Costs, many: Costs, weights: Weights) -> list[Line]:
    short = f"{RESERVE_MIB:,.0f} MiB of memory stay for others, and {weights.fallen:.1f} went with each run"
    beside, alive, zygote = f"{FEW} alive", f"{lived} alive", [weights.zygote]
    grown = [
        ("`run_<agent>` until it asks", [c.known for c in many.came], [c.known for c in few.came]),
        ("reply until the parent has the result", [c.known for c in many.left], [c.known for c in few.left]),
        ("reply until the last process is gone", [c.done for c in many.left], [c.done for c in few.left]),
        ("processor time of a start and an end", _worked(many), _worked(few)),
        ("processor time of a minute of waiting", many.idle, few.idle),
    ]
    return [
        _alive_line(lived, wanted, short),
        *(
            Line(f"{what}, {alive}", taken, beside, floor, GROWTH, because=CROWDED)
            for what, taken, floor in grown
        ),
        Line(f"memory that {lived} runs took, each", [weights.fallen], "the zygote", zygote, unit="MiB"),
        Line(f"PSS of one of {lived} waiting runs", weights.pss, "the zygote", zygote, unit="MiB"),
    ]


def _worked(costs: Costs) -> list[float]:
    return [came.worked + left.worked for came, left in zip(costs.came, costs.left, strict=True)]


if __name__ == "__main__":
    print(table(measure(Scale(int(sys.argv[1]) // 2 if len(sys.argv) > 1 else 20))))
