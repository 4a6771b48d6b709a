"""Fifty starts at once, by one server and by fifty commands: all warm, and the last first request.

`python -m benchmarks.bursts [STARTS]`. The baseline is a single warm start in the same world.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from mcp import Client

from benchmarks.bench_world import BenchWorld, bench_world
from benchmarks.scale import Scale
from benchmarks.start import READY_SECONDS, SCRIPT, ready_zygote
from benchmarks.table import Bar, Line, table
from subagent_server.process.marks import read_shim
from subagent_server.run import processes

TITLE = "Many starts at once"
STARTS = 50
LIMIT_MS = 6_000
SINGLE_STARTS = 5
COMMAND = (str(Path(sys.executable).with_name("subagent")), "run", "asker", "Ask.", "--detach")
CROWDED = "all starts share the cores of the machine"

Burst = Callable[[BenchWorld, Client, int], Awaitable[None]]


def measure(scale: Scale) -> list[Line]:
    """Return two lines for each kind of burst: how many starts were warm, and how late each was."""
    number = min(STARTS, scale.runs)
    kinds: tuple[tuple[str, Burst], ...] = (("one server", _by_server), ("as many commands", _by_commands))
    lines: list[Line] = []
    for kind, burst in kinds:
        with bench_world(SCRIPT, ["asker"]) as world:
            lines += asyncio.run(_measured(world, f"{number} starts at once by {kind}", burst, number))
    return lines


async def _measured(world: BenchWorld, what: str, burst: Burst, number: int) -> list[Line]:
    await ready_zygote(world)
    async with world.client() as client:
        single: list[float] = []
        for _ in range(SINGLE_STARTS):
            single += await _requests(world, client, burst, 1)
        known = set(world.service.store.run_ids())
        taken = await _requests(world, client, burst, number)
    warm = _warm_runs(world, [name for name in world.service.store.run_ids() if name not in known])
    return [
        Line(
            f"{what}: warm",
            [float(warm)],
            "wanted",
            [float(number)],
            (Bar("ratio", 1, at_least=True),),
            "runs",
        ),
        Line(
            f"{what}: first request",
            taken,
            "one by itself",
            single,
            (Bar("worst", LIMIT_MS),),
            because=CROWDED,
        ),
    ]


async def _requests(world: BenchWorld, client: Client, burst: Burst, number: int) -> list[float]:
    """Start so many runs at once; return the milliseconds until the first request of each."""
    world.simulator.clear()
    began = time.monotonic()
    await burst(world, client, number)
    requests = await asyncio.to_thread(world.simulator.wait_for_requests, number, READY_SECONDS)
    return [(request.arrived - began) * 1000 for request in requests]


async def _by_server(world: BenchWorld, client: Client, number: int) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(number):
            group.create_task(client.call_tool("run_asker", {"prompt": "Ask."}))


async def _by_commands(world: BenchWorld, client: Client, number: int) -> None:
    started = [
        subprocess.Popen(
            COMMAND,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=world.environment,
            cwd=world.directory,
        )
        for _ in range(number)
    ]
    codes = [await asyncio.to_thread(process.wait, READY_SECONDS) for process in started]
    if any(codes):
        raise RuntimeError(f"commands exited with {sorted(set(codes))}")


def _warm_runs(world: BenchWorld, run_ids: Sequence[str]) -> int:
    """Return how many of these runs have a shim that the zygote forked: its parent is the zygote."""
    zygote = world.zygote()
    return sum(zygote is not None and _parent_of_shim(world, run_id) == zygote.pid for run_id in run_ids)


def _parent_of_shim(world: BenchWorld, run_id: str) -> int | None:
    shim = processes.Identity.from_json(read_shim(world.service.store.paths.run(run_id)).get("shim"))
    stat = None if shim is None else processes.stat_of(shim.pid)
    return None if stat is None else stat.parent


if __name__ == "__main__":
    print(table(measure(Scale(int(sys.argv[1]) if len(sys.argv) > 1 else 10))))
