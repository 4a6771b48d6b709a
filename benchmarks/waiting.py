"""The memory of runs that wait for their parent: fresh ones, and those that have called `bash` before.

`python -m benchmarks.waiting [RUNS]`. The agent has the default tools. The baseline is the zygote, whose
memory the processes of all runs share.
"""

import asyncio
import sys
from functools import partial
from typing import Any

from benchmarks.bench_world import BenchWorld, bench_world
from benchmarks.memory import proportional_mib
from benchmarks.scale import Scale
from benchmarks.start import ready_zygote, until
from benchmarks.table import Bar, Line, table
from subagent_server.process.marks import read_shim
from subagent_server.run import processes
from subagent_server.run.errors import SubagentError
from tests.helpers.turns import Turn, asks, shell

TITLE = "Waiting"
RUNS = 200
FRESH, AFTER_BASH = "Ask.", "Look, then ask."
BAR = Bar("p50", 24)
HEAVY = "reference counts make pages of the zygote a run's own, wherever Python touches them"
ZYGOTE = "the zygote"


def model(body: dict[str, Any]) -> Turn:
    """Ask at once, or after a call of `bash`, as the prompt says."""
    messages = body["messages"]
    if len(messages) == 1 and AFTER_BASH in messages[0]["content"][-1]["text"]:
        return shell("git --version; ls / | head -3")
    return asks("Which way?")


def measure(scale: Scale) -> list[Line]:
    """Return the lines of both kinds of waiting runs."""
    lines: list[Line] = []
    for prompt, kind in ((FRESH, "fresh"), (AFTER_BASH, "after a `bash` call")):
        with bench_world(model, ["asker"]) as world:
            lines += asyncio.run(_measured(world, min(RUNS, scale.runs), prompt, kind))
    return lines


async def _measured(world: BenchWorld, number: int, prompt: str, kind: str) -> list[Line]:
    await ready_zygote(world)
    async with world.client() as client:
        for count in range(1, number + 1):
            await client.call_tool("run_asker", {"prompt": prompt})
            await until(partial(_is_asked_by, world, count))
        return _weights(world, f"PSS of one of {number} waiting runs, {kind}")


def _weights(world: BenchWorld, what: str) -> list[Line]:
    """Return the memory of shims and workers, and of the shells below the workers."""
    shims: list[float] = []
    workers: list[float] = []
    below: list[float] = []
    for run_id in _asking(world):
        facts = read_shim(world.service.store.paths.run(run_id))
        shim, worker = (processes.Identity.from_json(facts.get(name)) for name in ("shim", "worker"))
        shims.append(proportional_mib(shim))
        workers.append(proportional_mib(worker))
        below.append(
            sum(map(proportional_mib, [] if worker is None else processes.descendants([worker.pid])))
        )
    together = [sum(parts) for parts in zip(shims, workers, below, strict=True)]
    zygote = [proportional_mib(world.zygote())]
    return [
        Line(f"{what}: its shim", shims, ZYGOTE, zygote, unit="MiB"),
        Line(f"{what}: its worker", workers, ZYGOTE, zygote, unit="MiB"),
        Line(f"{what}: processes below its worker", below, ZYGOTE, zygote, unit="MiB"),
        Line(f"{what}: all of them", together, ZYGOTE, zygote, (BAR,), "MiB", HEAVY),
    ]


def _is_asked_by(world: BenchWorld, number: int) -> bool:
    return len(_asking(world)) >= number


def _asking(world: BenchWorld) -> list[str]:
    """Return the runs that wait for an answer."""
    store = world.service.store
    found = []
    for run_id in store.live_ids():
        try:
            if store.read(run_id).pending_questions:
                found.append(run_id)
        except SubagentError:
            continue  # a start that is not finished
    return found


if __name__ == "__main__":
    print(table(measure(Scale(int(sys.argv[1]) if len(sys.argv) > 1 else 20))))
