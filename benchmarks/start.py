"""From the call of `run_<agent>` to the first request at the model, warm beside plain, and what a run weighs.

`python -m benchmarks.start [WAITING_RUNS]`. Plain and warm starts take turns, through a server each. The
floor is a fork of a process as large as the warm one that leaves at once.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace

from mcp import Client

from benchmarks.bench_world import LONG_SECONDS, BenchWorld, bench_world
from benchmarks.memory import proportional_mib
from benchmarks.scale import Scale
from benchmarks.table import Bar, Line, table
from subagent_server.domain.errors import SubagentError
from subagent_server.host import processes
from subagent_server.service.shim_record import read_shim

TITLE = "Starting and waiting"
WEIGHED = 200
PLAIN_STARTS = 7
WARM_FOR_ONE_PLAIN = 5
FORKS = 100
PAUSE_SECONDS = 0.3
"""How long nothing is started before a start that is measured on its own."""
READY_SECONDS = 300
SLOW = "the synced writes, three processes in a row, and the first call of the SDK in the last one"
BUSY = "the process for the next start is made ready on the cores that this one needs"
HEAVY = "reference counts make pages of the image a run's own, wherever it touches them"
SCRIPT = {"turns": [{"tool_use": [{"name": "ask_parent", "input": {"question": "Which way?"}}]}]}
_FORKING = """
import os, sys, time
from pathlib import Path
from tempfile import TemporaryDirectory
from subagent_server.warm.zygote import warmed_up
with TemporaryDirectory() as place:
    warmed_up(Path(place))
for _ in range(int(sys.argv[1])):
    began = time.perf_counter()
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    print((time.perf_counter() - began) * 1000)
"""


def measure(scale: Scale) -> list[Line]:
    """Return the lines of starts, and of the memory of runs that wait."""
    with bench_world(SCRIPT, ["asker"]) as world:
        return asyncio.run(_measured(world, min(WEIGHED, scale.runs)))


async def _measured(world: BenchWorld, waiting: int) -> list[Line]:
    plainly = replace(world, environment={**world.environment, "SUBAGENT_WARM": "0"})
    plain: list[float] = []
    warm: list[float] = []
    in_a_row: list[float] = []
    async with world.client() as client, plainly.client() as plain_client:
        await _until(lambda: _is_warm(world))
        await _first_request(world, client)
        for _ in range(PLAIN_STARTS):
            plain.append(await _first_request(world, plain_client))
            for _ in range(WARM_FOR_ONE_PLAIN):
                await asyncio.sleep(PAUSE_SECONDS)
                warm.append(await _first_request(world, client))
            in_a_row += [await _first_request(world, client) for _ in range(WARM_FOR_ONE_PLAIN)]
        await asyncio.to_thread(world.stop_all)
        for _ in range(waiting):
            await _first_request(world, client)
        await _until(lambda: len(_asking(world)) >= waiting)
        weights = _weights(world, f"PSS of one of {waiting} runs that wait")
        await asyncio.sleep(LONG_SECONDS)
        weights += _weights(
            world, f"PSS of one of {waiting} that have waited {LONG_SECONDS} s", Bar("p50", 10)
        )
    floor = await asyncio.to_thread(_forks)
    what = "call to first model request"
    return [
        Line(f"{what}, plain start", plain, "fork and exit of the warm process", floor),
        Line(f"{what}, warm", warm, "plain start", plain, (Bar("p50", 40), Bar("ratio", 0.02)), because=SLOW),
        Line(
            f"{what}, one right after another",
            in_a_row,
            "plain start",
            plain,
            (Bar("p50", 40),),
            because=BUSY,
        ),
        *weights,
    ]


def _is_warm(world: BenchWorld) -> bool:
    return any((world.directory / "warm").glob("*.sock"))


async def ready_zygote(world: BenchWorld) -> None:
    """Return as soon as there is a warm process; a server starts it."""
    async with world.client():
        await _until(lambda: _is_warm(world))


async def _first_request(world: BenchWorld, client: Client) -> float:
    """Call, and return after how many milliseconds the model was asked."""
    world.simulator.clear()
    began = time.monotonic()
    await client.call_tool("run_asker", {"prompt": "Ask."})
    (request, *_) = await asyncio.to_thread(world.simulator.wait_for_requests, 1, READY_SECONDS)
    return (request.arrived - began) * 1000


def _forks() -> list[float]:
    command = [sys.executable, "-E", "-P", "-c", _FORKING, str(FORKS)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=True)
    return [float(line) for line in done.stdout.split()]


def _weights(world: BenchWorld, of: str, *bars: Bar) -> list[Line]:
    """Return the memory of keepers and workers, beside that of the warm process, which they share."""
    recorded = [read_shim(world.service.store.paths.run(run_id)) for run_id in _asking(world)]
    keepers, workers = (
        [proportional_mib(processes.Identity.from_json(facts.get(who))) for facts in recorded]
        for who in ("shim", "worker")
    )
    together = [keeper + worker for keeper, worker in zip(keepers, workers, strict=True)]
    lock = next((world.directory / "warm").glob("*.lock"))
    zygote = [proportional_mib(processes.identify(int(lock.read_text(encoding="ascii"))))]
    beside = "the warm process"
    return [
        Line(f"{of}: its keeper", keepers, beside, zygote, unit="MiB"),
        Line(f"{of}: its worker", workers, beside, zygote, unit="MiB"),
        Line(f"{of}: together", together, beside, zygote, bars, "MiB", HEAVY),
    ]


def _asking(world: BenchWorld) -> list[str]:
    """Return the runs that wait for an answer."""
    store = world.service.store
    found = []
    for run_id in store.live_ids():
        try:
            meta = store.read(run_id)
        except SubagentError:
            continue  # a start that is not finished
        if meta.pending_questions:
            found.append(run_id)
    return found


async def _until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(READY_SECONDS):
        while not condition():
            await asyncio.sleep(0.2)


if __name__ == "__main__":
    print(table(measure(Scale(int(sys.argv[1]) if len(sys.argv) > 1 else 50))))
