"""What it costs a parent to delegate one task of 10 s with an answer of 2 KB, by three ways of waiting.

Bytes are what the parent's model sees: the calls it writes and the texts it gets. The baseline is the
cheapest conceivable way: one call that holds the prompt, one answer that holds the text.

`python -m benchmarks.delegation [RUNS]`
"""

import asyncio
import json
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from mcp import Client

from benchmarks.bench_world import BenchWorld, bench_world
from benchmarks.scale import Scale
from benchmarks.table import Bar, Line, table

TITLE = "Delegating one task, with an answer of 2 KB"
ANSWER = "The cause lies in the order of two writes. " * 48
PROMPT = "Find out why the nightly job leaves half a file behind, and say in a paragraph what to do about it."
POLL_SECONDS = 2.0


@dataclass
class Meter:
    """Counts the calls of a parent and the bytes that pass before its model's eyes."""

    client: Client
    calls: int = 0
    seen: int = 0
    answers: list[dict[str, Any]] = field(default_factory=list)

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Call a tool and count it."""
        result = await self.client.call_tool(tool, arguments, read_timeout_seconds=120)
        texts = [getattr(block, "text", "") for block in result.content]
        self.calls += 1
        self.seen += len(tool) + len(json.dumps(arguments)) + sum(len(text.encode()) for text in texts)
        answer: dict[str, Any] = result.structured_content or {}
        self.answers.append(answer)
        return answer


async def by_polling(meter: Meter) -> str:
    """Start, then look every two seconds."""
    view = await meter.call("run_worker", prompt=PROMPT)
    run_id = str(view["runId"])
    while view["status"] != "completed":
        await asyncio.sleep(POLL_SECONDS)
        view = await meter.call("check_status", runId=run_id)
    return run_id


async def by_wait_for_runs(meter: Meter) -> str:
    """Start, then wait for any run."""
    view = await meter.call("run_worker", prompt=PROMPT)
    await meter.call("wait_for_runs", waitSeconds=45)
    return str(view["runId"])


async def by_wait_seconds(meter: Meter) -> str:
    """One call that waits."""
    return str((await meter.call("run_worker", prompt=PROMPT, waitSeconds=45))["runId"])


def measure(scale: Scale) -> list[Line]:
    """Return two lines for each way: what the parent's model sees, and how late it hears of the end."""
    seconds = scale.work_seconds
    with bench_world({"turns": [{"text": ANSWER, "latency": seconds}]}, ["worker"]) as world:
        return asyncio.run(_measured(world, seconds))


async def _measured(world: BenchWorld, seconds: float) -> list[Line]:
    cheapest = [float(len(json.dumps({"prompt": PROMPT})) + len(ANSWER.encode()))]
    lines: list[Line] = []
    async with world.client() as client:
        for name, way, is_barred in (
            (f"polling every {POLL_SECONDS:g} s", by_polling, False),
            ("`wait_for_runs`", by_wait_for_runs, True),
            ("`waitSeconds`", by_wait_seconds, True),
        ):
            meter = Meter(client)
            run_id = await way(meter)
            delay = [(time.time() - _completed(world, run_id)) * 1000]
            how = f"{name}, {meter.calls} call{'' if meter.calls == 1 else 's'}"
            bars = ((Bar("p50", 3_500),), (Bar("p50", 500),)) if is_barred else ((), ())
            least = "one call, one text"
            lines.append(Line(f"bytes seen, {how}", [float(meter.seen)], least, cheapest, bars[0], "bytes"))
            work = f"the work of {seconds:g} s"
            lines.append(Line(f"delay after the work, {how}", delay, work, [seconds * 1000], bars[1]))
    return lines


def _completed(world: BenchWorld, run_id: str) -> float:
    """Return when the run had its result, in seconds since the epoch."""
    ended = world.service.store.read(run_id).completed_at
    return ended.timestamp() if ended is not None else time.time()


if __name__ == "__main__":
    print(table(measure(Scale(int(sys.argv[1]) if len(sys.argv) > 1 else 50))))
