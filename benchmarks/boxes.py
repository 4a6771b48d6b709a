"""What the sandbox costs: the first command of a run, a thousand commands, a search, and memory.

`python -m benchmarks.boxes [RUNS]`. Without bubblewrap it cannot be measured.
"""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.bench_world import BenchWorld, bench_world
from benchmarks.memory import own_mib
from benchmarks.scale import Scale
from benchmarks.start import ready_zygote
from benchmarks.table import Bar, Line, table
from subagent_server.run import processes
from subagent_server.run.files import Directory
from subagent_server.sandbox.box import Box, Rules, build_box
from subagent_server.toolbox.bash import BashTool
from subagent_server.toolbox.ripgrep import SearchScope
from subagent_server.toolbox.search import GrepTool
from subagent_server.verbs.start import StartOrder, start
from tests.helpers.wait import wait_for

TITLE = "The sandbox"
BASELINE = "without a box"
TIMES = 20
COMMANDS = 1_000
_MODEL_SECONDS = 0.3
_BOUND = 60.0
WAITS = "`bwrap` holds all names and builds its box before the model is called, to refuse what cannot be kept"
_AGENT = "---\nname: {name}\ndescription: Of the benchmark.\nsandbox: {name}\n---\nYou work.\n"


def measure(scale: Scale) -> list[Line]:
    """Return all lines."""
    times = scale.times(TIMES)
    first = _first_commands(times)
    plain_call, plain_command = first["none"]
    boxed = [
        line
        for sandbox, about in (("auto", "`auto`"), ("bwrap", "`bwrap`"))
        for line in (
            Line(f"start to the first request, {about}", first[sandbox][0], BASELINE, plain_call),
            Line(
                f"start to the end of the first command, {about}",
                first[sandbox][1],
                BASELINE,
                plain_command,
                (Bar("ratio", 1.05),),
                because=WAITS if sandbox == "bwrap" else "",
            ),
        )
    ]
    many = [[_commands(box) for _ in range(max(2, times // 5))] for box in (False, True)]
    searches = [_searches(times, in_box=in_box) for in_box in (False, True)]
    more = [after - before for before, after in zip(*searches, strict=True)]
    return [
        *boxed,
        Line(f"{COMMANDS:,} commands in one shell", many[1], BASELINE, many[0], (Bar("ratio", 1.05),)),
        Line("what a search takes longer", more, "a search without a box", searches[0], (Bar("p50", 10),)),
        Line("memory of a box beside its shell", [_memory()], "1 MiB", [1024], (Bar("ratio", 1),), "KiB"),
    ]


def _first_commands(times: int) -> dict[str, tuple[list[float], list[float]]]:
    """Return how long runs take until the first request, and until the result of a first command, in ms.

    The model takes 300 ms for a reply. All kinds take turns, so that they meet the same machine.
    """
    turns: list[dict[str, object]] = [
        {"tool_use": [{"name": "bash", "input": {"command": "true"}}]},
        {"text": "Done."},
    ]
    script = {"turns": [{**turn, "latency": _MODEL_SECONDS} for turn in turns]}
    taken: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in ("none", "auto", "bwrap")}
    with bench_world(script, []) as world:
        (world.directory / "work").mkdir()
        for name in taken:
            (world.directory / "agents" / f"{name}.md").write_text(_AGENT.format(name=name), encoding="utf-8")
        asyncio.run(ready_zygote(world))
        for number in range(times + 1):
            for name, found in taken.items():
                spent = _first_command(world, name)
                if number:  # the first of each meets a cold cache
                    for kind, milliseconds in zip(found, spent, strict=True):
                        kind.append(milliseconds)
    return taken


def _first_command(world: BenchWorld, agent: str) -> tuple[float, float]:
    before = len(world.simulator.requests)
    began = time.monotonic()
    run_id = start(world.service, StartOrder(agent, "Go.", cwd=str(world.directory / "work"))).run_id
    first, second = world.simulator.wait_for_requests(before + 2, _BOUND)[before : before + 2]
    mark = world.service.store.paths.change_mark(run_id)
    wait_for(lambda: not mark.exists(), _BOUND, "the end of a run, which is no cost of the next")
    return (first.arrived - began) * 1000, (second.arrived - began) * 1000


def _commands(in_box: bool) -> float:
    async def all_of_them(tool: BashTool) -> float:
        await tool.call({"command": "true"})
        began = time.monotonic()
        for _ in range(COMMANDS):
            await tool.call({"command": "/bin/true"})
        return (time.monotonic() - began) * 1000

    async def main() -> float:
        with _shell(in_box=in_box) as tool:
            try:
                return await all_of_them(tool)
            finally:
                await tool.aclose()

    return asyncio.run(main())


def _searches(times: int, *, in_box: bool) -> list[float]:
    taken = []
    with _directory() as directory:
        (directory / "file.txt").write_text("needle\n", encoding="utf-8")
        program = _box(directory).program if in_box else None
        tool = GrepTool(SearchScope(directory, bubblewrap=program))
        for _ in range(times):
            began = time.monotonic()
            result = asyncio.run(tool.call({"pattern": "needle"}))
            taken.append((time.monotonic() - began) * 1000)
            assert not result.is_error, result.text
    return taken


def _memory() -> float:
    """Return the memory that the processes of bubblewrap have for themselves, in KiB."""

    async def main() -> float:
        with _shell(in_box=True) as tool:
            try:
                await tool.call({"command": "true"})
                mine = processes.descendants([os.getpid()])
                return sum(own_mib(each.pid) * 1024 for each in mine if _name(each.pid) == "bwrap")
            finally:
                await tool.aclose()

    return asyncio.run(main())


def _name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()


@contextmanager
def _shell(*, in_box: bool) -> Iterator[BashTool]:
    with _directory() as directory:
        box = (lambda: _box(directory)) if in_box else None
        yield BashTool(
            cwd=directory, environment=dict(os.environ), output_dir=Directory(directory / "o"), box=box
        )


def _box(directory: Path) -> Box:
    return build_box(Rules(cwd=directory, environment=dict(os.environ)))


@contextmanager
def _directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(os.path.realpath(name))


if __name__ == "__main__":
    print(table(measure(Scale(int(sys.argv[1]) if len(sys.argv) > 1 else Scale().runs))))
