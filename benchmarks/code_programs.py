"""How long a program of code mode takes to start and to call a tool, in a box and without.

`python -m benchmarks.code_programs`. Baselines are a bare interpreter, a Python MCP server that is started
and called once (which a program would have to do for itself), and the same call by the run's own session.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters

from benchmarks.bench_world import BenchWorld, bench_world
from benchmarks.code_tokens import CODE_TOOL, SERVER, WAIT_SECONDS, write_agent
from benchmarks.scale import Scale
from benchmarks.table import Bar, Line, table
from subagent_server.run import durable
from subagent_server.run.agent_definition import AgentDefinition, ServerDefinition
from subagent_server.sandbox.server_locations import ServerStarts
from subagent_server.toolbox.mcp.mcp_tools import ToolChoice, connect
from subagent_server.toolbox.mcp.server_connection import ServerContext
from subagent_server.toolbox.outputs import KeptOutputs
from tests.helpers.turns import Turn, call, says, tool_results

_STARTS = ServerStarts(
    AgentDefinition(name="bench", sandbox="none"), dict(os.environ), Path.cwd(), Path.cwd()
)

TITLE = "Programs of code mode"
PROGRAMS = 20
CALLS = 200
BARE_SERVER = Path(__file__).with_name("bare_server.py")
BARE = (sys.executable, "-I", "-c", "pass")
PLACES = {"boxed": "auto", "free": "none"}
"""The agents, and their `sandbox`."""
TIMING = f"""
import json, time
taken = []
for _ in range({CALLS}):
    began = time.perf_counter()
    shop.list_owners()
    taken.append((time.perf_counter() - began) * 1000)
print(json.dumps(taken))
"""


def model(body: dict[str, Any]) -> Turn:
    """Start programs that do nothing, then one that times its calls."""
    done = sum(message["role"] == "assistant" for message in body["messages"])
    if done < PROGRAMS:
        return call(CODE_TOOL, code="pass", executionTimeout=60)
    if done == PROGRAMS:
        return call(CODE_TOOL, code=TIMING, executionTimeout=60)
    return says(tool_results(body)[-1])


def measure(scale: Scale) -> list[Line]:
    """Return the lines.

    Raises:
        RuntimeError: a run did not complete.
    """
    bare = [_bare() for _ in range(PROGRAMS)]
    servers = [asyncio.run(_server_started_and_called()) for _ in range(PROGRAMS // 4)]
    direct = asyncio.run(_direct_calls())
    lines: list[Line] = []
    with bench_world(model, []) as world:
        for name, sandbox in PLACES.items():
            write_agent(world, name, 10, {"codeMode": {"enabled": True}, "sandbox": sandbox})
        for name, where in zip(PLACES, ("in a box", "without a box"), strict=True):
            started, called = asyncio.run(_programs(world, name))
            slower = [each - sorted(direct)[len(direct) // 2] for each in called]
            lines += [
                Line(f"a program, {where}", started, "`python -I -c pass`", bare, (Bar("ratio", 3),)),
                Line(
                    f"a program, {where}",
                    started,
                    "an MCP server for one call",
                    servers,
                    (Bar("ratio", 0.1),),
                ),
                Line(f"a call in it, {where}: longer by", slower, "a direct call", direct, (Bar("p50", 1),)),
            ]
    return lines


def _bare() -> float:
    began = time.perf_counter()
    subprocess.run(BARE, check=True)
    return (time.perf_counter() - began) * 1000


async def _server_started_and_called() -> float:
    began = time.perf_counter()
    async with Client(StdioServerParameters(command=sys.executable, args=[str(BARE_SERVER)])) as client:
        await client.call_tool("nothing", {})
        return (time.perf_counter() - began) * 1000


async def _direct_calls() -> list[float]:
    """Return what the calls of a connected tool take, in milliseconds."""
    server = ServerDefinition(command=sys.executable, args=["-S", str(SERVER), "10"])
    around = ServerContext(_STARTS.start, lambda kind, **facts: None)
    connected = await connect({"shop": server}, around, "worker")
    connected.choose(ToolChoice(), (), KeptOutputs())
    tool = next(tool for tool in connected.tools if tool.name == "list_owners")
    taken: list[float] = []
    for _ in range(CALLS):
        began = time.perf_counter()
        await tool.call({})
        taken.append((time.perf_counter() - began) * 1000)
    await connected.aclose()
    return taken


async def _programs(world: BenchWorld, name: str) -> tuple[list[float], list[float]]:
    """Return what the programs of a run took, and the calls of its last one, in milliseconds."""
    async with world.client() as client:
        result = await client.call_tool(f"run_{name}", {"prompt": "Go.", "waitSeconds": WAIT_SECONDS})
    view: dict[str, Any] = result.structured_content or {}
    if view.get("status") != "completed":
        raise RuntimeError(f"the run of {name}: {result.content}")
    events = durable.records(world.service.store.paths.run(view["runId"]).events)
    taken = [event["seconds"] * 1000 for event in events if event.get("type") == "tool_result"]
    return taken[:PROGRAMS], json.loads(view["result"])


if __name__ == "__main__":
    print(table(measure(Scale())))
