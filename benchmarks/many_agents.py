"""What 1,500 agents cost: a page of `tools/list`, `list_agents`, and the memory of the server.

`python -m benchmarks.many_agents`. The baseline is a bare tool of the same SDK.
"""

import asyncio
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from benchmarks.bench_world import BenchWorld, bench_world
from benchmarks.latency import BARE_SERVER, BASELINE
from benchmarks.scale import Scale
from benchmarks.serve_start import own_memory, serving
from benchmarks.start import SCRIPT, ready_zygote
from benchmarks.table import Bar, Line, table

TITLE = "1,500 agents"
AGENTS = 1_500
ROUNDS = 20
CALLS = 100
QUERY = {"name": "list_agents", "arguments": {"query": "kubernetes security"}}
BARE_CALL = {"name": "nothing", "arguments": {}}
WORDS = ("security", "review", "kubernetes", "database", "frontend", "incident", "migration")
AGENT = """---
name: {name}
description: Use this agent for {topic} work. {words}
tools: Read, Grep, Bash
---
{body}
"""


def measure(scale: Scale) -> list[Line]:
    """Return the lines of pages, of searches, and of memory."""
    with bench_world(SCRIPT, []) as world:
        _write_agents(world)
        asyncio.run(ready_zygote(world))
        whole = {**world.environment, "SUBAGENT_TOOLS_BUDGET": "10000000"}
        with serving(world, world.environment, [sys.executable, str(BARE_SERVER)]) as process:
            bare = _Client(process)
            floor = [bare.ask("tools/call", **BARE_CALL)[1] for _ in range(scale.times(CALLS))]
        with serving(world, whole) as process:
            first, *pages = [
                took for _ in range(scale.times(ROUNDS)) for took in _Client(process).pages_of_tools()
            ]
            listed = own_memory(process)
        with serving(world, world.environment) as process:
            client = _Client(process)
            client.ask("tools/list")
            found = [client.ask("tools/call", **QUERY)[1] for _ in range(scale.times(CALLS))]
            searched = own_memory(process)
        with serving(
            world, {**world.environment, "SUBAGENT_AGENTS": str(world.directory / "none")}
        ) as process:
            _Client(process).ask("tools/list")
            without = own_memory(process)
    page = f"a page of `tools/list`, {AGENTS:,} tools"
    memory = "memory of its own (USS), warm"
    return [
        Line(page, pages, BASELINE, floor, (Bar("p50", 50),)),
        Line(f"the first page, when {AGENTS:,} files are read", [first], BASELINE, floor),
        Line(f"`list_agents` with a query, {AGENTS:,} agents", found, BASELINE, floor, (Bar("p50", 50),)),
        Line(f"{memory}, all tools listed", [listed], "no agent", [without], (Bar("worst", 60),), "MiB"),
        Line(f"{memory}, `run_agent`", [searched], "no agent", [without], (Bar("worst", 60),), "MiB"),
    ]


def _write_agents(world: BenchWorld) -> None:
    """Write agents as long as real ones."""
    topics = itertools.product(WORDS, WORDS)
    for number, (one, other) in zip(range(AGENTS), itertools.cycle(topics), strict=False):
        name = f"{one}-{other}-{number}"
        text = AGENT.format(
            name=name, topic=one, words=f"Ask it about {other}. " * 20, body=f"Look at {one} twice.\n" * 250
        )
        (world.directory / "agents" / f"{name}.md").write_text(text, encoding="utf-8")


@dataclass
class _Client:
    """A client over bare pipes: what it takes to read an answer is not the server's."""

    process: subprocess.Popen[str]
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(2))

    def ask(self, method: str, **params: Any) -> tuple[dict[str, Any], float]:
        """Return the result of a request, and the milliseconds until it was there."""
        assert self.process.stdin is not None and self.process.stdout is not None
        number = next(self.numbers)
        request = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        began = time.perf_counter()
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            took = (time.perf_counter() - began) * 1000
            answer = json.loads(line)
            if answer.get("id") == number:
                return dict(answer["result"]), took
        raise RuntimeError("the server has left")

    def pages_of_tools(self) -> Iterator[float]:
        """Yield how many milliseconds each page of the tools took."""
        cursor: dict[str, str] = {}
        while True:
            result, took = self.ask("tools/list", **cursor)
            yield took
            if "nextCursor" not in result:
                return
            cursor = {"cursor": result["nextCursor"]}


if __name__ == "__main__":
    print(table(measure(Scale(int(sys.argv[1]) if len(sys.argv) > 1 else 50))))
