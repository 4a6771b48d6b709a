"""How long a run takes to connect to 5 MCP servers with 200 tools in all, against its slowest and their sum.

The servers take their time to start, each its own.

`python -m benchmarks.mcp_servers`
"""

import asyncio
import json
import os
import sys
import time
from pathlib import Path

from benchmarks.scale import Scale
from benchmarks.table import Bar, Line, table
from subagent_server.run.agent_definition import AgentDefinition, ServerDefinition
from subagent_server.sandbox.server_locations import ServerStarts
from subagent_server.toolbox.mcp.mcp_tools import ToolChoice, connect
from subagent_server.toolbox.mcp.server_connection import ServerContext
from subagent_server.toolbox.outputs import KeptOutputs

_STARTS = ServerStarts(
    AgentDefinition(name="bench", sandbox="none"), dict(os.environ), Path.cwd(), Path.cwd()
)

SERVERS = 5
TOOLS = 40
TITLE = "MCP servers of a run"
START_SECONDS = (0.4, 0.8, 1.2, 1.6, 2.0)

PROGRAM = """
import json, sys, time
name, tools, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
schema = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(8)}}
listed = [{"name": f"{name}_{n}", "description": "A tool.", "inputSchema": schema} for n in range(tools)]
answers = {
    "initialize": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                   "serverInfo": {"name": name, "version": "1"}},
    "tools/list": {"tools": listed},
}
getattr(time, "sleep")(seconds)
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        known = answers.get(message["method"])
        rest = {"result": known} if known else {"error": {"code": -32601, "message": "unknown"}}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **rest}), flush=True)
"""


def definitions() -> dict[str, ServerDefinition]:
    """Return the servers, each with its own time to start."""
    return {
        f"s{number}": ServerDefinition(
            command=sys.executable, args=["-S", "-c", PROGRAM, f"s{number}", str(TOOLS), str(seconds)]
        )
        for number, seconds in enumerate(START_SECONDS[:SERVERS])
    }


async def timed(servers: dict[str, ServerDefinition]) -> float:
    """Return how many seconds it takes to connect to these servers at once, and to make tools of theirs."""
    around = ServerContext(_STARTS.start, lambda kind, **facts: None)
    began = time.perf_counter()
    connected = await connect(servers, around, "worker")
    connected.choose(ToolChoice(), (), KeptOutputs())
    made = [tool.definition() for tool in connected.tools]
    seconds = time.perf_counter() - began
    await connected.aclose()
    assert len(made) == TOOLS * len(servers), json.dumps(made)[:200]
    return seconds


async def ways() -> tuple[list[float], float]:
    """Return how many seconds each server takes alone, and how many all of them take at once."""
    servers = definitions()
    alone = [await timed({name: server}) for name, server in servers.items()]
    return alone, await timed(servers)


def measure(scale: Scale) -> list[Line]:
    """Return the lines of the table."""
    alone, together = asyncio.run(ways())
    what = f"connecting {SERVERS} servers with {SERVERS * TOOLS} tools"
    return [
        Line(what, [together], "the slowest of them alone", [max(alone)], (Bar("ratio", 1.5),), unit="s"),
        Line(what, [together], "one after the other", [sum(alone)], unit="s"),
    ]


if __name__ == "__main__":
    print(table(measure(Scale())))
