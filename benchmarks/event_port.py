"""What an event costs that a program posts to a working run: processor time of the worker.

`python -m benchmarks.event_port [RUNS]`. The sender keeps its connection. The baseline is a bare asyncio
server that gets the same requests.
"""

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.bench_world import BenchWorld, bench_world
from benchmarks.memory import worked_seconds
from benchmarks.scale import Scale
from benchmarks.start import ready_zygote, until
from benchmarks.table import Bar, Line, table
from subagent_server.host import processes
from subagent_server.service.shim_record import read_shim
from subagent_server.service.start import StartOrder, start
from tests.helpers.turns import asks, shell

TITLE = "Events of programs"
SCRIPT = {"turns": [shell("printenv SUBAGENT_LOGGING_ADDRESS > address"), asks("Which way?")]}
AGENT = "---\nname: asker\ndescription: Asks.\nsandbox: none\n---\nAsk.\n"
"""In a sandbox programs are not told the address."""
BARE_SERVER = Path(__file__).with_name("bare_event_server.py")
BASELINE = "a bare asyncio server"
ROUNDS = 50
EVENTS = 200
"""Of a round: more than a clock of the kernel needs."""
TOGETHER = 20
BAR = Bar("p50", 200)
"""Of microseconds: 5,000 events a second are the work of one core."""
EVENT = {
    "subagentName": "searcher",
    "subagentRunId": "run-1",
    "timestamp": "2026-01-01T00:00:00Z",
    "type": "tool_call",
    "toolName": "search",
    "toolCallId": "call-1",
    "payload": {"query": "where the events of programs are read", "limit": 20},
}


class Sender:
    """Posts events over one connection to a process, whose processor time it reads."""

    def __init__(self, address: str, process: processes.Identity) -> None:
        url = urlsplit(address)
        body = json.dumps(EVENT).encode()
        head = (
            f"POST {url.path}/subagent-events HTTP/1.1\r\nHost: {url.netloc}\r\nContent-Length: {len(body)}"
        )
        self._request = f"{head}\r\n\r\n".encode() + body
        self._process = process
        self._connection = socket.create_connection((url.hostname, url.port))
        self._answers = self._connection.makefile("rb")
        self.cost(TOGETHER)  # the first request imports the parser

    def cost(self, together: int) -> float:
        """Post the events of a round, so many at a time; return microseconds of the process for each."""
        before = worked_seconds(self._process)
        for _ in range(EVENTS // together):
            self._connection.sendall(self._request * together)
            for _ in range(together):
                self._read_answer()
        return (worked_seconds(self._process) - before) / EVENTS * 1_000_000

    def _read_answer(self) -> None:
        assert b" 200 " in self._answers.readline()
        length = 0
        while (line := self._answers.readline()) != b"\r\n":
            if line.lower().startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
        self._answers.read(length)


def measure(scale: Scale) -> list[Line]:
    """Return the lines of single events, and of those that come together; run and baseline take turns."""
    with bench_world(SCRIPT, []) as world, bare_sender() as bare:
        sender = asyncio.run(_sender(world))
        ways = (1, TOGETHER)
        taken: dict[int, list[float]] = {together: [] for together in ways}
        floor: dict[int, list[float]] = {together: [] for together in ways}
        for _ in range(scale.times(ROUNDS)):
            for together in ways:
                taken[together].append(sender.cost(together))
                floor[together].append(bare.cost(together))
    return [
        Line(what, taken[together], BASELINE, floor[together], (BAR,), "µs of CPU")
        for what, together in (
            ("an event of a program", 1),
            (f"one of {TOGETHER} that come together", TOGETHER),
        )
    ]


async def _sender(world: BenchWorld) -> Sender:
    """Start a run and return the sender to its port, while the run waits for an answer."""
    (world.directory / "agents" / "asker.md").write_text(AGENT, encoding="utf-8")
    await ready_zygote(world)
    order = StartOrder("asker", "Wait.", cwd=str(world.directory))
    run_id = (await asyncio.to_thread(start, world.service, order)).run_id
    store = world.service.store
    await until(lambda: store.read(run_id).pending_questions)
    worker = processes.Identity.from_json(read_shim(store.paths.run(run_id)).get("worker"))
    assert worker is not None
    return Sender((world.directory / "address").read_text(encoding="ascii").strip(), worker)


@contextmanager
def bare_sender() -> Iterator[Sender]:
    """Yield the sender to the baseline."""
    with subprocess.Popen([sys.executable, str(BARE_SERVER)], stdout=-1, text=True) as process:
        assert process.stdout is not None
        server = processes.identify(process.pid)
        assert server is not None
        try:
            yield Sender(f"http://127.0.0.1:{int(process.stdout.readline())}", server)
        finally:
            process.kill()


if __name__ == "__main__":
    print(table(measure(Scale(int(sys.argv[1]) if len(sys.argv) > 1 else 50))))
