"""The time until an end is on record or complete: a killed worker in the raw file, and a server that exits.

`python -m benchmarks.endings`. Tests check that these happen; the times depend on the machine.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.bench_world import BenchWorld, bench_world
from benchmarks.latency import BARE_SERVER
from benchmarks.scale import Scale
from benchmarks.serve_start import COMMAND, serving
from benchmarks.start import SCRIPT, ready_zygote
from benchmarks.table import Bar, Line, table
from subagent_server.process.marks import read_shim
from subagent_server.run import processes
from subagent_server.run.states import TERMINAL
from subagent_server.verbs.start import StartOrder, start

BARE = (sys.executable, "-I", "-S", "-c", "pass")
TITLE = "Ends"
TIMES = 20
RAW_MS, EXIT_MS = 3_000, 300
"""A killed worker is `failed` in the raw file, and a server has exited (SPEC section 5), after so many ms."""
_BOUND = 60.0
_LOOK = 0.001

End = Callable[["subprocess.Popen[str]"], None]


def measure(scale: Scale) -> list[Line]:
    """Return the lines of killed workers and of exiting servers."""
    times = scale.times(TIMES)
    with bench_world(SCRIPT, ["asker"]) as world:
        asyncio.run(ready_zygote(world))
        interpreter = [_timed(lambda: subprocess.run(BARE, check=True)) for _ in range(times)]
        killed = [_killed(world) for _ in range(times)]
        bare = (sys.executable, str(BARE_SERVER))
        floor = [_exit(world, bare, _close_input) for _ in range(times)]
        closed = [_exit(world, COMMAND, _close_input) for _ in range(times)]
        signalled = [_exit(world, COMMAND, _terminate) for _ in range(times)]
    what = "an idle server exits"
    baseline = "a bare server of the same SDK, end of input"
    return [
        Line(
            "a killed worker is `failed` in the raw file, without a reader",
            killed,
            "a bare interpreter",
            interpreter,
            (Bar("worst", RAW_MS),),
        ),
        Line(f"{what}, end of input", closed, baseline, floor, (Bar("worst", EXIT_MS),)),
        Line(f"{what}, SIGTERM", signalled, baseline, floor, (Bar("worst", EXIT_MS),)),
    ]


def _killed(world: BenchWorld) -> float:
    """Kill the worker of a run that waits; return the milliseconds until its raw file says so."""
    service = world.service
    run_id = start(service, StartOrder("asker", "Ask.")).run_id
    _until(lambda: service.store.read(run_id).pending_questions == 1)
    paths = service.store.paths.run(run_id)
    worker = processes.Identity.from_json(read_shim(paths).get("worker"))
    if worker is None or not processes.send_signal(worker, signal.SIGKILL):
        raise RuntimeError(f"run {run_id} has no worker to kill")
    return _timed(lambda: _until(lambda: _raw_status(paths.meta.path) in TERMINAL))


def _raw_status(file: Path) -> str:
    """Read the status as a CI job does, without this package's readers."""
    return str(json.loads(file.read_bytes())["status"])


def _exit(world: BenchWorld, command: tuple[str, ...], end: End) -> float:
    """Return the milliseconds from the end of its input, or a signal, to the exit of a server."""
    with serving(world, world.environment, command) as process:
        return _timed(lambda: _ended(process, end))


def _ended(process: "subprocess.Popen[str]", end: End) -> None:
    end(process)
    if (code := process.wait(_BOUND)) not in (0, -signal.SIGTERM):
        raise RuntimeError(f"the server exited with {code}")


def _close_input(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.close()


def _terminate(process: "subprocess.Popen[str]") -> None:
    os.kill(process.pid, signal.SIGTERM)


def _timed(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return (time.perf_counter() - began) * 1000


def _until(condition: Callable[[], bool]) -> None:
    deadline, pause = time.monotonic() + _BOUND, threading.Event()
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the benchmark did not come so far within {_BOUND:g} s")
        pause.wait(_LOOK)


if __name__ == "__main__":
    print(table(measure(Scale(int(sys.argv[1]) if len(sys.argv) > 1 else 20))))
