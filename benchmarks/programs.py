"""Runs that a program carries out, many at once, each waiting for its parent by a relay of its own."""

import asyncio
import json
import sys
from pathlib import Path

from benchmarks.bench_world import BenchWorld, bench_world
from benchmarks.memory import available_mib, proportional_mib
from benchmarks.scale import WHOLE, Scale
from benchmarks.start import ready_zygote
from benchmarks.table import Bar, Line, table
from subagent_server.process.marks import read_shim
from subagent_server.run import processes
from subagent_server.run.states import Status
from tests.extensions.programs import asking_parent

TITLE = "Programs as subagents"
AGENT = "programmed"
MOST = 60
LARGEST_MIB = 25.0
_ASKING = Path(str(asking_parent.__file__)).parent
_PROGRAM = f"""
import sys
sys.path.insert(0, {str(_ASKING)!r})
from asking_parent import Server
print(Server().ask("Which colour?"))
"""
_ALL_SECONDS = 600.0
_LOOK_SECONDS = 0.5


def measure(scale: Scale) -> list[Line]:
    """Return the lines. Raises RuntimeError: not all of them wait at once."""
    number = MOST if scale.runs >= WHOLE else min(MOST, max(2, scale.runs // 2))
    with bench_world({"turns": [{"text": "(nobody asks)"}]}, []) as world:
        front = {"name": AGENT, "description": "Asks.", "runner": "command", "command": sys.executable}
        lines = [f"{key}: {json.dumps(value)}" for key, value in {**front, "args": ["-c", _PROGRAM]}.items()]
        file = world.directory / "agents" / f"{AGENT}.md"
        file.write_text("\n".join(["---", *lines, "---", ""]), encoding="utf-8")
        return asyncio.run(_measured(world, number))


async def _measured(world: BenchWorld, number: int) -> list[Line]:
    async with world.client() as client:
        await ready_zygote(world)
        before, service = available_mib(), world.service
        run_ids = []
        for _ in range(number):
            started = await client.call_tool(f"run_{AGENT}", {"prompt": "Paint it."})
            run_ids.append(str((started.structured_content or {})["runId"]))
        deadline = asyncio.get_running_loop().time() + _ALL_SECONDS
        while (statuses := {service.store.read(run_id).status for run_id in run_ids}) != {Status.WAITING}:
            if asyncio.get_running_loop().time() > deadline or any(each.is_terminal for each in statuses):
                raise RuntimeError(f"not all of {number} runs wait within {_ALL_SECONDS:g} s: {statuses}")
            await asyncio.sleep(_LOOK_SECONDS)
        fallen = (before - available_mib()) / number
        shims, workers, relays = [], [], []
        for run_id in run_ids:
            shim = processes.Identity.from_json(read_shim(service.store.paths.run(run_id)).get("shim"))
            worker = service.store.read(run_id).worker
            assert shim is not None and worker is not None
            (relay,) = (each for each in processes.descendants([worker.pid]) if _is_relay(each))
            shims.append(proportional_mib(shim))
            workers.append(proportional_mib(processes.identify(worker.pid)))
            relays.append(proportional_mib(relay))
        ours = [sum(each) for each in zip(shims, workers, relays, strict=True)]
    of = f"PSS of one of {number} runs of a program that asks"
    return [
        Line(f"{of}: its shim", shims, "all of ours", ours, unit="MiB"),
        Line(f"{of}: its worker", workers, "all of ours", ours, unit="MiB"),
        Line(f"{of}: its relay", relays, "all of ours", ours, unit="MiB"),
        Line(f"{of}: all of ours", ours, "its worker", workers, (Bar("worst", LARGEST_MIB),), "MiB"),
        Line("memory that each took, the program's own with it", [fallen], "all of ours", ours, unit="MiB"),
    ]


def _is_relay(process: processes.Identity) -> bool:
    return any(word.endswith(b"/relay.py") for word in processes.command_of(process.pid))


if __name__ == "__main__":
    print(table(measure(Scale(int(sys.argv[1]) * 2 if len(sys.argv) > 1 else 20))))
