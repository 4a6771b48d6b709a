"""`check_status` over HTTP from many connections at a fixed rate, compared with the same rate over stdio.

`python -m benchmarks.http_calls [WAITING_RUNS]`. Every connection is kept open by a client of its own, which
sends its calls one after the other; together they send 100 a second. The answers have to be plain JSON. Then
the memory of the server is compared before and after 10,000 calls, and the tools of contracts are timed.
"""

import asyncio
import itertools
import json
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.bench_world import BenchWorld, bench_world, timed
from benchmarks.latency import SCRIPT, start_run, until_all_ask
from benchmarks.scale import Scale
from benchmarks.start import ready_zygote
from benchmarks.table import Bar, Line, table

TITLE = "Calls over HTTP"
CONNECTIONS = 200
CALLS_A_SECOND = 100
CALLS = 2_000
CALLS_FOR_MEMORY = 10_000
WARM_CALLS = 1_000
LIFECYCLE_CALLS = 200
LIFECYCLE_STARTS = 30
VERSION = "2026-07-28"
READY_SECONDS = 60.0
Ask = Callable[[str, dict[str, Any]], Awaitable[None]]
"""Calls a tool over one connection."""
_META = {
    "io.modelcontextprotocol/protocolVersion": VERSION,
    "io.modelcontextprotocol/clientCapabilities": {},
}


def measure(scale: Scale) -> list[Line]:
    """Return the lines.

    Raises:
        RuntimeError: a call was refused, or was not answered as plain JSON.
    """
    with bench_world(SCRIPT, ["asker"]) as world:
        return asyncio.run(_measured(world, scale))


async def _measured(world: BenchWorld, scale: Scale) -> list[Line]:
    async with world.client() as client, _served(world) as server:
        await ready_zygote(world)  # else the first of so many runs are plain ones, and take all the memory
        run_ids = [await start_run(client) for _ in range(max(scale.live))]
        await until_all_ask(world)
        ids = itertools.cycle(run_ids)

        async def over_stdio(number: int) -> None:
            await client.call_tool("check_status", {"runId": next(ids)})

        paced, flat_out = CALLS_A_SECOND, 1e9
        stdio = await _timed(over_stdio, scale.times(CALLS), paced)
        async with server.connections() as ask:

            async def over_http(number: int) -> None:
                await ask[number % CONNECTIONS]("check_status", {"runId": next(ids)})

            http = await _timed(over_http, scale.times(CALLS), paced)
            await _timed(over_http, scale.times(WARM_CALLS), flat_out)
            before = server.resident_kib()
            await _timed(over_http, scale.times(CALLS_FOR_MEMORY), flat_out)
            after = server.resident_kib()
            lifecycle = await _lifecycle(ask[0], ids, len(run_ids), scale)
    what = f"`check_status`, {CONNECTIONS} connections, {CALLS_A_SECOND} calls a second, {len(run_ids)} alive"
    calls = f"memory of the server after {scale.times(CALLS_FOR_MEMORY):,} calls"
    return [
        Line(what, http, "the same calls over stdio", stdio, (Bar("p99 ratio", 3),)),
        Line(calls, [after], "before them", [before], (Bar("ratio", 1.05),), unit="KiB"),
        *lifecycle,
    ]


async def _lifecycle(ask: Ask, ids: Iterator[str], alive: int, scale: Scale) -> list[Line]:
    """Return the lines of the tools of contracts, each with the tool for agent files that does as much."""

    async def timed_call(tool: str, arguments: Callable[[], dict[str, Any]], times: int) -> list[float]:
        return await timed(lambda: ask(tool, arguments()), times)

    calls = scale.times(LIFECYCLE_CALLS)
    looked = await timed_call("check_status", lambda: {"runId": next(ids)}, calls)
    status = await timed_call("agent_status", lambda: {"agent_ids": [next(ids)]}, calls)
    begun: list[float] = []
    starts: list[float] = []
    for _ in range(scale.times(LIFECYCLE_STARTS)):  # in turn: each start meets the worker of the one before
        begun += await timed_call("run_asker", lambda: {"prompt": "Ask."}, 1)
        starts += await timed_call("agent_start", lambda: {"contract": "Ask."}, 1)
    return [
        Line(f"`agent_status`, {alive} alive", status, "`check_status`", looked, (Bar("ratio", 1.5),)),
        Line(f"`agent_start`, {alive} alive", starts, "`run_<agent>`", begun, (Bar("ratio", 1.5),)),
    ]


async def _timed(call: Callable[[int], Awaitable[None]], times: int, rate: float) -> list[float]:
    """Make calls at a fixed rate, each by the next client; return how late each answer came, in ms.

    A client whose last answer has not come yet sends its next call late: that counts too.
    """
    taken = [0.0] * times
    began = time.perf_counter()

    async def client(first: int) -> None:
        for number in range(first, times, CONNECTIONS):
            due = began + number / rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            sent = time.perf_counter() if rate > CALLS_A_SECOND else due
            await call(number)
            taken[number] = (time.perf_counter() - sent) * 1000

    await asyncio.gather(*(client(first) for first in range(min(CONNECTIONS, times))))
    return taken


@dataclass(frozen=True)
class _Served:
    """A server over HTTP, and the token of its first parent."""

    pid: int
    port: int
    token: str

    def resident_kib(self) -> float:
        """Return the memory of the server, in KiB."""
        lines = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii").splitlines()
        return float(next(line.split()[1] for line in lines if line.startswith("VmRSS:")))

    @asynccontextmanager
    async def connections(self) -> AsyncIterator[list[Ask]]:
        """Give a function for each connection that calls a tool over it; each has made one call.

        Of those that have said nothing yet, who may be anybody, a server holds few.
        """
        asks: list[Ask] = []
        async with AsyncExitStack() as opened:
            for _ in range(CONNECTIONS):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                opened.callback(writer.close)
                asks.append(partial(self._ask, reader, writer))
                await asks[-1]("list_runs", {})
            yield asks

    async def _ask(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, tool: str, arguments: dict[str, Any]
    ) -> None:
        """Call a tool by the newer protocol: one request, one answer."""
        params = {"name": tool, "arguments": arguments, "_meta": _META}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
        head = (
            "POST /mcp HTTP/1.1",
            f"Host: 127.0.0.1:{self.port}",
            f"Authorization: Bearer {self.token}",
            "Accept: application/json, text/event-stream",
            "Content-Type: application/json",
            f"MCP-Protocol-Version: {VERSION}",
            "Mcp-Method: tools/call",
            f"Mcp-Name: {tool}",
            f"Content-Length: {len(body)}",
        )
        writer.write("\r\n".join([*head, "", ""]).encode() + body)
        answered = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
        headers = dict(line.split(": ", 1) for line in answered[1:] if line)
        if " 200 " not in answered[0] or not headers["content-type"].startswith("application/json"):
            raise RuntimeError(f"the call was not answered as plain JSON: {answered}")
        answer = json.loads(await reader.readexactly(int(headers["content-length"])))
        if answer["result"].get("isError"):
            raise RuntimeError(f"the call was refused: {answer}")


@asynccontextmanager
async def _served(world: BenchWorld) -> AsyncIterator[_Served]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    state = world.directory / "state"
    environment = {**world.environment, "XDG_STATE_HOME": str(state)}
    command = (sys.executable, "-m", "subagent_server", "serve", "--http", f"127.0.0.1:{port}")
    with (world.directory / "http.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, cwd=world.directory, stdout=log, stderr=log)
    try:
        async with asyncio.timeout(READY_SECONDS):
            while not _listens(port):
                await asyncio.sleep(0.1)
        yield _Served(process.pid, port, _token(state / "subagent" / "http-tokens"))
    finally:
        process.terminate()
        process.wait()


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return False
    return True


def _token(file: Path) -> str:
    lines = file.read_text(encoding="utf-8").splitlines()
    return next(line.split()[1] for line in lines if not line.startswith("#"))


if __name__ == "__main__":
    print(table(measure(Scale(int(sys.argv[1]) if len(sys.argv) > 1 else 50))))
