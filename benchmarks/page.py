"""The page beside many runs that are alive: its first rows, a line of a log, and what it costs the server.

`python -m benchmarks.page [RUNS]`. The runs are planted: a state, a journal and a held lock each, which is all
that the page looks at. The baseline of what a browser waits for is an answer that looks at no run.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from benchmarks.scale import Scale
from benchmarks.table import Bar, Line, table
from subagent_server.service.page_access import PageAccess
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
    alive = scale.runs
    with tempfile.TemporaryDirectory() as name:
        root = Path(name, "runs")
        make_stored(root, ENDED)
        with planted(root, alive) as run_ids, _served(Path(name), root) as page:
            bare = [page.timed_answer("/") for _ in range(scale.times(TIMES))]
            first = [page.first_rows(alive) for _ in range(scale.times(TIMES))]
            log = root / run_ids[0] / "run.log"
            lines = [page.line_seen(log, number) for number in range(scale.times(TIMES))]
            worked = page.worked(scale.times(int(IDLE_SECONDS)))
    shown = f"{alive} alive"
    return [
        Line(f"the first rows, {shown}", first, "the page without rows", bare, (Bar("p50", 200),)),
        Line(f"a line of a log, written until received, {shown}", lines, "the page without rows", bare, (Bar("p99", 300),)),
        Line(f"one open page, {shown}", [worked], "a core", [100], (Bar("p50", 5),), unit="% of a core"),
    ]


@dataclass(frozen=True)
class _Page:
    """A server, and the session of a browser that it knows."""

    pid: int
    port: int
    secret: str

    @contextmanager
    def _got(self, path: str) -> Iterator[Any]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=SILENCE_SECONDS)
        try:
            connection.request("GET", path, headers={"Authorization": f"Bearer {self.secret}"})
            answer = connection.getresponse()
            if answer.status != 200:
                raise RuntimeError(f"{path} was answered with {answer.status}")
            yield answer
        finally:
            connection.close()

    def timed_answer(self, path: str) -> float:
        """Return how long a whole answer takes, in ms."""
        began = time.perf_counter()
        with self._got(path) as answer:
            answer.read()
        return _since(began)

    def first_rows(self, alive: int) -> float:
        """Return how long it takes until the rows of all runs that are alive have come, in ms."""
        began = time.perf_counter()
        with self._got("/page/events") as answer:
            _until(answer, lambda kind, news: kind == "runs" and len(news["rows"]) >= alive)
            taken = _since(began)
        time.sleep(0.3)  # the server lets go of the table when nobody reads it, and the next one is the first
        return taken

    def line_seen(self, log: Path, number: int) -> float:
        """Return how long a line of the log of an open run takes to come, in ms."""
        line = f"12:00:00 line {number} of the benchmark"
        with self._got(f"/page/events?run={log.parent.name}") as answer:
            _until(answer, lambda kind, _: kind == "runs")
            time.sleep(0.5)
            began = time.perf_counter()
            with log.open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")
            _until(answer, lambda kind, news: kind == "log" and line in news["text"])
            return _since(began)

    def worked(self, seconds: float) -> float:
        """Return how much of a core the server needs while one page is open, in percent."""
        with self._got("/page/events") as answer:
            _until(answer, lambda kind, news: kind == "runs")
            time.sleep(1)
            before, began = self._ticks(), time.perf_counter()
            time.sleep(seconds)
            return (self._ticks() - before) / _TICKS / (time.perf_counter() - began) * 100

    def _ticks(self) -> int:
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])


def _until(answer: Any, wanted: Callable[[str, dict[str, Any]], bool]) -> None:
    """Read an event stream up to the first event that is wanted."""
    kind = ""
    for line in answer:
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name == "event":
            kind = value
        if name == "data" and wanted(kind, json.loads(value)):
            return
    raise RuntimeError("the stream has ended")


def _since(began: float) -> float:
    return (time.perf_counter() - began) * 1000


@contextmanager
def _served(home: Path, root: Path) -> Iterator[_Page]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    state = home / "state"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SUBAGENT")}
    environment = {**kept, "HOME": str(home), "XDG_STATE_HOME": str(state), "SUBAGENT_RUNS": str(root)}
    command = (sys.executable, "-m", "subagent_server", "serve", "--http", f"127.0.0.1:{port}")
    with (home / "http.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, cwd=home, stdout=log, stderr=log)
    try:
        _wait(port)
        access = PageAccess(state / "subagent" / "page")
        yield _Page(process.pid, port, access.redeem(access.new_code()) or "")
    finally:
        process.terminate()
        process.wait()


def _wait(port: int) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


if __name__ == "__main__":
    print(table(measure(Scale(int(sys.argv[1]) if len(sys.argv) > 1 else 50))))
