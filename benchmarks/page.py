"""The page among many runs that are alive: its first rows, a line of a log, and its cost for the server.

`python -m benchmarks.page [RUNS]`. The runs are planted: a state, a journal and a held lock each, because the
page looks at nothing else. The baseline for the waits of a browser is an answer that looks at no run.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.scale import Scale
from benchmarks.table import Bar, Line, table
from subagent_server.verbs.access_tokens import PageAccess
from tests.helpers.planted import planted
from tests.helpers.stored import make_stored

TITLE = "The page"
ENDED = 500
TIMES = 25
IDLE_SECONDS = 60.0
READY_SECONDS = 60.0
SILENCE_SECONDS = 30.0
_TICKS = os.sysconf("SC_CLK_TCK")


def measure(scale: Scale) -> list[Line]:
    """Return the lines. Raises RuntimeError: the page did not show what is there."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name, "runs")
        make_stored(root, ENDED)
        with planted(root, scale.runs) as run_ids:
            return asyncio.run(_measured(Path(name), root, run_ids, scale))


async def _measured(home: Path, root: Path, run_ids: list[str], scale: Scale) -> list[Line]:
    alive, times, log = len(run_ids), scale.times(TIMES), root / run_ids[0] / "run.log"
    async with _served(home, root) as page:
        bare = [await page.timed_answer("/") for _ in range(times)]
        first = [await page.first_rows(alive) for _ in range(times)]
        lines = [await page.line_seen(log, number) for number in range(times)]
        worked = await page.worked(scale.times(int(IDLE_SECONDS)))
    shown = f"{alive} alive"
    return [
        Line(f"the first rows, {shown}", first, "the page without rows", bare, (Bar("p50", 200),)),
        Line(
            f"a line of a log, written until received, {shown}",
            lines,
            "the page without rows",
            bare,
            (Bar("p99", 300),),
        ),
        Line(f"one open page, {shown}", [worked], "a core", [100], (Bar("p50", 5),), unit="% of a core"),
    ]


@dataclass(frozen=True)
class _Page:
    """A server, and a client with the session of a browser that it knows."""

    pid: int
    client: httpx2.AsyncClient

    async def timed_answer(self, path: str) -> float:
        """Return how long a whole answer takes, in ms."""
        began = time.perf_counter()
        (await self.client.get(path)).raise_for_status()
        return _since(began)

    async def first_rows(self, alive: int) -> float:
        """Return how long it takes until the rows of all runs that are alive have come, in ms."""
        began = time.perf_counter()
        async with self.client.stream("GET", "/page/events") as answer:
            await _first(_events(answer), lambda kind, news: kind == "runs" and len(news["rows"]) >= alive)
            taken = _since(began)
        await asyncio.sleep(
            0.3
        )  # a table that nobody reads is forgotten, and the next look is the first again
        return taken

    async def line_seen(self, log: Path, number: int) -> float:
        """Return how long a line of the log of an open run takes to come, in ms."""
        line = f"12:00:00 line {number} of the benchmark"
        async with self.client.stream("GET", f"/page/events?run={log.parent.name}") as answer:
            events = _events(answer)
            await _first(events, lambda kind, _: kind == "runs")
            await asyncio.sleep(0.5)
            began = time.perf_counter()
            with log.open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")
            await _first(events, lambda kind, news: kind == "log" and line in news["text"])
            return _since(began)

    async def worked(self, seconds: float) -> float:
        """Return how much of a core the server needs while one page is open, in percent."""
        async with self.client.stream("GET", "/page/events") as answer:
            events = _events(answer)  # kept: the page is open as long as it is
            await _first(events, lambda kind, news: kind == "runs")
            await asyncio.sleep(1)
            before, began = self._ticks(), time.perf_counter()
            await asyncio.sleep(seconds)
            worked = self._ticks() - before
            await events.aclose()
            return worked / _TICKS / (time.perf_counter() - began) * 100

    def _ticks(self) -> int:
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])


Wanted = Callable[[str, dict[str, Any]], bool]


async def _events(answer: httpx2.Response) -> AsyncGenerator[tuple[str, dict[str, Any]]]:
    """Yield the events of a stream."""
    answer.raise_for_status()
    kind = ""
    async for line in answer.aiter_lines():
        name, _, value = line.partition(": ")
        if name == "event":
            kind = value
        elif name == "data":
            yield kind, json.loads(value)


async def _first(events: AsyncIterator[tuple[str, dict[str, Any]]], wanted: Wanted) -> None:
    """Read up to the first event that is wanted."""
    async with asyncio.timeout(SILENCE_SECONDS):
        async for event in events:
            if wanted(*event):
                return
    raise RuntimeError("the stream has ended")


def _since(began: float) -> float:
    return (time.perf_counter() - began) * 1000


@asynccontextmanager
async def _served(home: Path, root: Path) -> AsyncIterator[_Page]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    state = home / "state"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SUBAGENT")}
    environment = {**kept, "HOME": str(home), "XDG_STATE_HOME": str(state), "SUBAGENT_RUNS": str(root)}
    environment["SUBAGENT_WARM"] = "0"  # so that the process that is started is the one that serves
    command = (sys.executable, "-m", "subagent_server", "serve", "--http", f"127.0.0.1:{port}")
    with (home / "http.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, cwd=home, stdout=log, stderr=log)
    try:
        await _listening(port)
        access = PageAccess(state / "subagent" / "page")
        code = access.new_code(access.servers()[0])
        address = f"http://127.0.0.1:{port}"
        async with httpx2.AsyncClient(base_url=address, timeout=SILENCE_SECONDS) as client:
            entered = await client.post("/page/session", json={"code": code}, headers={"Origin": address})
            client.headers["Authorization"] = f"Bearer {entered.json()['secret']}"
            yield _Page(process.pid, client)
    finally:
        process.terminate()
        process.wait()


async def _listening(port: int) -> None:
    async with asyncio.timeout(READY_SECONDS):
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                return
            except ConnectionRefusedError:
                await asyncio.sleep(0.1)


if __name__ == "__main__":
    print(table(measure(Scale(int(sys.argv[1]) if len(sys.argv) > 1 else 50))))
