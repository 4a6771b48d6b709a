"""1,000 calls of an agent, 32 at once, by a flow, compared with the same calls by a parent.

What a call takes more, what the flow's own processes hold, and how many bytes pass before the parent's model.

`python -m benchmarks.flows [RUNS]`
"""

import asyncio
import sys
import time
from contextlib import suppress
from typing import Any

from benchmarks.bench_world import BenchWorld, bench_world
from benchmarks.delegation import Meter
from benchmarks.memory import own_mib, proportional_mib
from benchmarks.scale import WHOLE, Scale
from benchmarks.table import Bar, Line, table
from subagent_server.process import marks
from subagent_server.run import processes

TITLE = "A flow of 1,000 calls, 32 at once"
AT_ONCE = 32
CALLS = 1_000
FLOW = """\
'''Ask many, and count the answers.'''
from subagent import agents, gather

AGENTS = ["worker"]


def run(many: int, limit: int) -> int:
    return len(gather(*[agents.worker.call(prompt=f"Do part {n}.") for n in range(many)], limit=limit))
"""
_LOOK_SECONDS = 0.5
_WAIT_SECONDS = 50


def measure(scale: Scale) -> list[Line]:
    """Return a line for the time of a call, one for memory, and one for bytes."""
    calls = CALLS if scale.runs >= WHOLE else 2 * scale.runs
    with bench_world({"turns": [{"text": "Done. " * 40, "latency": 1.0}]}, ["worker"]) as world:
        (world.directory / "agents" / "fan.flow.py").write_text(FLOW, encoding="utf-8")
        return asyncio.run(_measured(world, calls))


async def _measured(world: BenchWorld, calls: int) -> list[Line]:
    async with world.client() as client:
        direct, flow = Meter(client), Meter(client)
        await flow.call("run_worker", prompt="Get warm.", waitSeconds=_WAIT_SECONDS)
        flow.seen = 0
        began = time.perf_counter()
        places = asyncio.Semaphore(AT_ONCE)

        async def directly(number: int) -> None:
            async with places:
                view = await direct.call("run_worker", prompt=f"Do part {number}.", waitSeconds=_WAIT_SECONDS)
                await _ended(direct, view)

        await asyncio.gather(*map(directly, range(calls)))
        by_parent = time.perf_counter() - began
        began = time.perf_counter()
        view = await flow.call("run_fan", many=calls, limit=AT_ONCE)
        watching = asyncio.create_task(_most_memory(world, view["runId"]))
        view = await _ended(flow, view)
        by_flow = time.perf_counter() - began
        if view.get("output") != calls:
            raise RuntimeError(f"the flow did not complete: {view}")
        memory = await watching
    each = [by_flow / calls * 1000], [by_parent / calls * 1000]
    return [
        Line(f"a call, of {calls:,}", each[0], "`run_worker`", each[1], (Bar("ratio", 1.2),)),
        *(
            Line(name, [memory[kind]], "the zygote", [memory["zygote"]], bars, "MiB")
            for name, kind, bars in (
                ("memory of its own (USS) of the flow's process", "worker", (Bar("p50", 60),)),
                ("the same of the program of the flow", "program", ()),
                ("PSS of the flow's process, with no worker beside it", "shared", ()),
            )
        ),
        Line(
            f"bytes that the parent sees, {flow.calls - 1} calls",
            [float(flow.seen)],
            f"{direct.calls:,} direct calls",
            [float(direct.seen)],
            (Bar("p50", 3_000),),
            "bytes",
        ),
    ]


async def _ended(meter: Meter, view: dict[str, Any]) -> dict[str, Any]:
    """Return the view of a run that has ended."""
    while view["status"] not in ("completed", "failed", "stopped"):
        view = await meter.call("check_status", runId=view["runId"], waitSeconds=_WAIT_SECONDS)
    return view


async def _most_memory(world: BenchWorld, run_id: str) -> dict[str, float]:
    """Return the most memory of its own (MiB) that each process of a run has held until its end.

    What all forks of the zygote share is counted once, there. `shared` is the worker with its part of that, a
    third once no other run is left.
    """
    run = world.service.store.paths.run(run_id)
    most = dict.fromkeys(("worker", "program", "shared", "zygote"), 0.0)
    while not world.service.store.read(run_id).status.is_terminal:
        worker = marks.recorded_worker(run)
        if worker is not None:
            below = processes.descendants(
                [worker.pid], spare=marks.shims_on_record(world.service.store.paths)
            )
            program = next(reversed(below), None)
            with suppress(OSError):  # it has ended meanwhile
                most["shared"] = max(most["shared"], proportional_mib(worker))
                most["worker"] = max(most["worker"], own_mib(worker.pid))
                most["zygote"] = max(most["zygote"], proportional_mib(world.zygote()))
                most["program"] = max(most["program"], 0.0 if program is None else own_mib(program.pid))
        await asyncio.sleep(_LOOK_SECONDS)
    return most


if __name__ == "__main__":
    print(table(measure(Scale(int(sys.argv[1]) if len(sys.argv) > 1 else 50))))
