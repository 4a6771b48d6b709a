"""How long a run takes to connect to 5 MCP servers with 200 tools in all, against its slowest and their sum.

The baseline is the sum: the same servers connected one after the other. Each takes its own time to start.

`python -m benchmarks.mcp_servers`
"""

import asyncio
import json
import os
import sys
import time
from pathlib import Path

from subagent_server.domain.definitions import ServerDefinition
from subagent_server.toolkit.mcp_servers.connection import Surroundings
from subagent_server.toolkit.mcp_servers.offer import Wanted
from subagent_server.toolkit.mcp_servers.results import Shelf
from subagent_server.toolkit.mcp_servers.servers import connect
from subagent_server.toolkit.mcp_servers.session import Place

SERVERS = 5
TOOLS = 40
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
    around = Surroundings(Place(dict(os.environ), Path.cwd()), lambda kind, **facts: None)
    began = time.perf_counter()
    connected = await connect(servers, around)
    tools, _ = connected.tools(Wanted(), (), Shelf())
    made = [tool.definition() for tool in tools]
    seconds = time.perf_counter() - began
    await connected.aclose()
    assert len(made) == TOOLS * len(servers), json.dumps(made)[:200]
    return seconds


async def measure() -> None:
    """Print the table."""
    servers = definitions()
    alone = [await timed({name: server}) for name, server in servers.items()]
    together = await timed(servers)
    print(f"{SERVERS} servers, {SERVERS * TOOLS} tools\n\n| way | seconds | of the sum |\n|---|---|---|")
    for way, seconds in (
        ("one after the other (baseline: the sum)", sum(alone)),
        ("the slowest alone", max(alone)),
        ("all at once, as a run does", together),
    ):
        print(f"| {way} | {seconds:.2f} | {seconds / sum(alone):.2f} |")
    print(f"\nall at once / the slowest: {together / max(alone):.2f}")


if __name__ == "__main__":
    asyncio.run(measure())
