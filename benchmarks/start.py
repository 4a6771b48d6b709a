"""From the call of `run_<agent>` to the first request at the model: warm and plain; and to its answer.

`python -m benchmarks.start [RUNS]`. The agent has the default tools. Baselines are the import of the two
large packages that a plain start needs, and a fork of a process as large as the zygote that exits at once.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace

from mcp import Client

from benchmarks.bench_world import BenchWorld, bench_world, timed
from benchmarks.scale import Scale
from benchmarks.table import Bar, Line, table

TITLE = "Starting"
IMPORT = "import anthropic, mcp"
PLAIN_STARTS = 7
WARM_STARTS = 100
STARTS_IN_A_ROW = 40
STARTS_AT_FIRST = 50
FORKS = 100
PAUSE_SECONDS = 0.3
"""The pause before a start that is measured by itself."""
READY_SECONDS = 300
SLOW = "the synced writes, three processes in a row, and the first call of the SDK in the last one"
SCRIPT = {"turns": [{"tool_use": [{"name": "ask_parent", "input": {"question": "Which way?"}}]}]}
_FORKING = """
import os, sys, time
from pathlib import Path
from tempfile import TemporaryDirectory
from subagent_server.worker.zygote_main import warmed_up
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
    """Return the lines of single starts."""
    imports = [_import() for _ in range(scale.times(PLAIN_STARTS))]
    forks = _forks(scale.times(FORKS))
    with bench_world(SCRIPT, ["asker"]) as world:
        plain, warm, in_a_row = asyncio.run(_measured(world, scale))
    with bench_world(SCRIPT, ["asker"]) as world:
        answers = asyncio.run(_answers(world, scale.times(STARTS_AT_FIRST)))
    what = "call to first model request"
    bars = (Bar("ratio", 0.05),)
    return [
        Line(f"{what}, plain start", plain, f"`{IMPORT}`", imports),
        Line(f"{what}, warm", warm, f"`{IMPORT}`", imports, bars, because=SLOW),
        Line(f"{what}, warm, one right after another", in_a_row, "warm, by itself", warm),
        Line(f"{what}, warm, beside a fork", warm, "fork and exit of a zygote", forks),
        Line(
            f"call to its answer, {len(answers)} in a row by a server that has just begun",
            answers,
            "first request, warm, by itself",
            warm,
            (Bar("p95", 100),),
            because="the zygote loads on the same cores",
        ),
    ]


async def _measured(world: BenchWorld, scale: Scale) -> tuple[list[float], list[float], list[float]]:
    plainly = replace(world, environment={**world.environment, "SUBAGENT_WARM": "0"})
    plain: list[float] = []
    warm: list[float] = []
    async with world.client() as client, plainly.client() as plain_client:
        await until(lambda: is_warm(world))
        await _first_request(world, client)
        for _ in range(scale.times(PLAIN_STARTS)):
            plain.append(await _first_request(world, plain_client))
        for _ in range(scale.times(WARM_STARTS)):
            await asyncio.sleep(PAUSE_SECONDS)
            warm.append(await _first_request(world, client))
        in_a_row = [await _first_request(world, client) for _ in range(scale.times(STARTS_IN_A_ROW))]
    return plain, warm, in_a_row


async def _answers(world: BenchWorld, number: int) -> list[float]:
    """Start so many runs, one after the other, while the zygote of the server gets ready."""
    async with world.client() as client:
        return await timed(lambda: client.call_tool("run_asker", {"prompt": "Ask."}), number)


def is_warm(world: BenchWorld) -> bool:
    """Whether the zygote of a world listens."""
    return any((world.directory / "warm").glob("*.sock"))


async def ready_zygote(world: BenchWorld) -> None:
    """Return as soon as there is a zygote; a server starts it."""
    async with world.client():
        await until(lambda: is_warm(world))


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition. Raises TimeoutError after 300 s."""
    async with asyncio.timeout(READY_SECONDS):
        while not condition():
            await asyncio.sleep(0.2)


async def _first_request(world: BenchWorld, client: Client) -> float:
    """Call, and return the milliseconds until the first request at the model."""
    world.simulator.clear()
    began = time.monotonic()
    await client.call_tool("run_asker", {"prompt": "Ask."})
    (request, *_) = await asyncio.to_thread(world.simulator.wait_for_requests, 1, READY_SECONDS)
    return (request.arrived - began) * 1000


def _import() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", IMPORT], check=True)
    return (time.perf_counter() - began) * 1000


def _forks(times: int) -> list[float]:
    command = [sys.executable, "-E", "-P", "-c", _FORKING, str(times)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=True)
    return [float(line) for line in done.stdout.split()]


if __name__ == "__main__":
    print(table(measure(Scale(int(sys.argv[1]) if len(sys.argv) > 1 else 50))))
