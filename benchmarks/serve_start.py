"""From the start of `subagent serve` to its reply to `initialize`, and its memory.

`python -m benchmarks.serve_start [RUNS]`. The baseline is the import of the SDK of the protocol.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from benchmarks.bench_world import BenchWorld, bench_world
from benchmarks.memory import own_mib
from benchmarks.scale import Scale
from benchmarks.start import SCRIPT
from benchmarks.table import Bar, Line, table

TITLE = "A server that starts"
STARTS = 15
COMMAND = (str(Path(sys.executable).with_name("subagent")), "serve", "--role", "parent")
IMPORT = (sys.executable, "-c", "import mcp")
_INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "bench", "version": "1"},
    },
}


def measure(scale: Scale) -> list[Line]:
    """Return the lines of starts, and of the memory that an idle server adds."""
    with bench_world(SCRIPT, ["asker"]) as world:
        imports = [_import() for _ in range(scale.times(STARTS))]
        starts = [_start(world, world.environment) for _ in range(scale.times(STARTS))]
        own = [_weight(world, world.environment) for _ in range(3)]
    floor = "`import mcp`"
    return [
        Line("`serve` to its reply to `initialize`", starts, floor, imports, (Bar("ratio", 1.5),)),
        Line("memory of its own (USS) of an idle server", own, "itself", own, unit="MiB"),
    ]


def _start(world: BenchWorld, environment: Mapping[str, str]) -> float:
    """Return how many milliseconds a server took to answer."""
    began = time.perf_counter()
    with serving(world, environment):
        return (time.perf_counter() - began) * 1000


def _weight(world: BenchWorld, environment: Mapping[str, str]) -> float:
    with serving(world, environment) as process:
        return own_memory(process)


def own_memory(process: subprocess.Popen[str]) -> float:
    """Return the memory in MiB that would be free without this server: it, and all below it."""
    assert process.stdin is not None
    return sum(own_mib(pid) for pid in {process.pid, *_readers(process.stdin)})


def _readers(stream: IO[str]) -> Iterator[int]:
    """Yield the processes that have the other end of a pipe: the server."""
    pipe = Path(f"pipe:[{os.fstat(stream.fileno()).st_ino}]")
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            held = any(link.readlink() == pipe for link in (entry / "fd").iterdir())
        except OSError:
            continue  # it ended, or is not ours
        if held:
            yield int(entry.name)


@contextmanager
def serving(
    world: BenchWorld, environment: Mapping[str, str], command: Sequence[str] = COMMAND
) -> Iterator[subprocess.Popen[str]]:
    """Yield a server that has answered `initialize`, and end it by the end of its input."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
        env=dict(environment),
        cwd=world.directory,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(json.dumps(_INITIALIZE) + "\n")
        process.stdin.flush()
        answer = json.loads(process.stdout.readline())
        assert "result" in answer, answer
        yield process
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(30)


def _import(command: Sequence[str] = IMPORT) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True)
    return (time.perf_counter() - began) * 1000


if __name__ == "__main__":
    print(table(measure(Scale(int(sys.argv[1]) if len(sys.argv) > 1 else 50))))
