"""How long `run_<agent>` and `check_status` take while runs wait for their parent, beside a bare tool.

`python -m benchmarks.latency [WAITING_RUNS]`
"""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.bench_world import BenchWorld, bench_world, spread, timed
from subagent_server.domain.errors import SubagentError

BARE_SERVER = Path(__file__).with_name("bare_server.py")
CALLS = 200
STARTS = 20
READY_SECONDS = 300
SCRIPT = {"turns": [{"tool_use": [{"name": "ask_parent", "input": {"question": "Which way?"}}]}]}


async def measure(world: BenchWorld, waiting: int) -> list[str]:
    """Return the lines of the table."""
    async with world.client([sys.executable, str(BARE_SERVER)]) as bare:
        floor = await timed(lambda: bare.call_tool("nothing", {}), CALLS)
    async with world.client() as client:
        started = [await client.call_tool("run_asker", {"prompt": "Ask."}) for _ in range(waiting)]
        await _until_all_ask(world)
        run_id = started[0].structured_content["runId"] if started[0].structured_content else ""
        status = await timed(lambda: client.call_tool("check_status", {"runId": run_id}), CALLS)
        starts = await timed(lambda: client.call_tool("run_asker", {"prompt": "Ask."}), STARTS)
    return [
        _line("bare tool of the same SDK (baseline)", floor, floor),
        _line(f"check_status, {waiting} runs waiting", status, floor),
        _line(f"run_<agent> returns, {waiting} runs waiting", starts, floor),
    ]


async def _until_all_ask(world: BenchWorld) -> None:
    service = world.service
    async with asyncio.timeout(READY_SECONDS):
        while True:
            try:
                metas = [service.store.read(run_id) for run_id in service.store.run_ids()]
            except SubagentError:
                continue
            if all(meta.pending_questions for meta in metas):
                return
            await asyncio.sleep(0.5)


def _line(name: str, taken: Sequence[float], baseline: Sequence[float]) -> str:
    (p50, p99), (base50, _) = spread(taken), spread(baseline)
    return f"| {name} | {p50:.1f} | {p99:.1f} | {p50 / base50:.1f} |"


def main(waiting: int = 50) -> None:
    """Print the table."""
    with bench_world(SCRIPT, ["asker"]) as world:
        lines = asyncio.run(measure(world, waiting))
    print("| what | p50 ms | p99 ms | p50 / baseline |\n|---|---|---|---|")
    print("\n".join(lines))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 50)
