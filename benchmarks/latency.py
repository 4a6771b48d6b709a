"""How long `run_<agent>` and `check_status` take while runs wait for their parent, compared with a bare tool.

`python -m benchmarks.latency [WAITING_RUNS]`
"""

import asyncio
import sys
from pathlib import Path

from mcp import Client

from benchmarks.bench_world import BenchWorld, bench_world, timed
from benchmarks.scale import Scale
from benchmarks.start import ready_zygote
from benchmarks.table import Bar, Line, table
from subagent_server.run.errors import SubagentError

TITLE = "Calls while runs wait for their parent"
BASELINE = "bare tool, same SDK"
BARE_SERVER = Path(__file__).with_name("bare_server.py")
CALLS = 200
STARTS = 30
READY_SECONDS_A_RUN = 6.0
BUSY = "a start copies 20 MiB on the two cores that the next one needs; kernel threads walk shared pages"
SCRIPT = {"turns": [{"tool_use": [{"name": "ask_parent", "input": {"question": "Which way?"}}]}]}


def measure(scale: Scale) -> list[Line]:
    """Return the lines for each number of runs that wait."""
    with bench_world(SCRIPT, ["asker"]) as world:
        return asyncio.run(_measured(world, scale))


async def _measured(world: BenchWorld, scale: Scale) -> list[Line]:
    lines: list[Line] = []
    run_ids: list[str] = []
    await ready_zygote(world)
    async with world.client([sys.executable, str(BARE_SERVER)]) as bare, world.client() as client:
        for waiting in scale.live:
            while len(run_ids) < waiting:
                run_ids.append(await start_run(client))
            await until_all_ask(world)
            lines += await _calls(bare, client, run_ids, waiting, scale)
    return lines


async def _calls(bare: Client, client: Client, run_ids: list[str], waiting: int, scale: Scale) -> list[Line]:
    watched = run_ids[0]
    floor = await timed(lambda: bare.call_tool("nothing", {}), scale.times(CALLS))
    status = await timed(lambda: client.call_tool("check_status", {"runId": watched}), scale.times(CALLS))

    async def start() -> None:
        run_ids.append(await start_run(client))

    starts = await timed(start, scale.times(STARTS))
    alive = f"{waiting} alive"
    quick = (Bar("ratio", 2.5),) if waiting >= 500 else (Bar("p99", 50),)
    return [
        Line(f"`check_status`, {alive}", status, BASELINE, floor, quick),
        Line(f"`run_<agent>` returns, {alive}", starts, BASELINE, floor, (Bar("p99", 100),), because=BUSY),
    ]


async def start_run(client: Client) -> str:
    """Start a run that asks its parent, and return its id."""
    result = await client.call_tool("run_asker", {"prompt": "Ask."})
    if result.is_error or not result.structured_content:
        raise RuntimeError(f"the run was not started: {result.content}")
    return str(result.structured_content["runId"])


async def until_all_ask(world: BenchWorld) -> None:
    """Return when all runs of a world wait for their parent."""
    store = world.service.store
    waiting = set(store.run_ids())
    async with asyncio.timeout(60 + READY_SECONDS_A_RUN * len(waiting)):
        while waiting:
            for run_id in list(waiting):
                try:
                    meta = store.read(run_id)
                except SubagentError:
                    break  # it is being made
                if meta.status.is_terminal:
                    raise RuntimeError(f"run {run_id} has ended: {meta.error}")
                if not meta.pending_questions:
                    break
                waiting.discard(run_id)
            await asyncio.sleep(0.2)


if __name__ == "__main__":
    print(table(measure(Scale(int(sys.argv[1]) if len(sys.argv) > 1 else 50))))
