"""Runs that a program carries out, many at once, each waiting for its parent by a server of its own."""

import asyncio
import json
import sys
from pathlib import Path

from benchmarks.bench_world import BenchWorld, bench_world
from benchmarks.memory import available_mib, proportional_mib
from benchmarks.scale import WHOLE, Scale
from benchmarks.start import ready_zygote
from benchmarks.table import Bar, Line, table
from subagent_server.domain.states import Status
from subagent_server.host import process_scan, processes
from subagent_server.service.shim_record import read_shim

TITLE = "Programs as subagents"
AGENT = "programmed"
MOST = 60
LARGEST_MIB = 25.0
SERVER = "the server for children is a whole server, with a process that stands for it"
_ASKING = Path(__file__).parents[1] / "tests" / "runners" / "programs"
_PROGRAM = f"""
import json, os, sys
sys.path.insert(0, {str(_ASKING)!r})
from asking_parent import answer_of_parent
server = json.load(open(os.environ["SUBAGENT_MCP_CONFIG"]))["mcpServers"]["subagent"]
print(answer_of_parent(server["command"], server["args"], "Which colour?"))
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
        while any(service.store.read(run_id).status is not Status.WAITING for run_id in run_ids):
            if asyncio.get_running_loop().time() > deadline:
                raise RuntimeError(f"not all of {number} runs wait within {_ALL_SECONDS:g} s")
            await asyncio.sleep(_LOOK_SECONDS)
        fallen = (before - available_mib()) / number
        zygote = world.zygote()
        forks = process_scan.descendants([zygote.pid]) if zygote is not None else []
        # the server that a program has started is a front, and a fork of the zygote does its work
        workers_of = [service.store.read(run_id).worker for run_id in run_ids]
        below_all = set(process_scan.descendants([each.pid for each in workers_of if each is not None]))
        behind = [proportional_mib(each) for each in forks if each not in below_all and _is_server(each)]
        if len(behind) != number:
            raise RuntimeError(f"{number} servers should be forks of the zygote, and {len(behind)} are")
        shims, workers, servers = [], [], []
        for run_id, fork in zip(run_ids, behind, strict=True):
            shim = processes.Identity.from_json(read_shim(service.store.paths.run(run_id)).get("shim"))
            worker = service.store.read(run_id).worker
            assert shim is not None and worker is not None
            below = process_scan.descendants([worker.pid])
            shims.append(proportional_mib(shim))
            workers.append(proportional_mib(processes.identify(worker.pid)))
            servers.append(fork + sum(proportional_mib(each) for each in below if _is_server(each)))
        ours = [sum(each) for each in zip(shims, workers, servers, strict=True)]
    of = f"PSS of one of {number} runs of a program that asks"
    return [
        Line(f"{of}: its shim", shims, "all of ours", ours, unit="MiB"),
        Line(f"{of}: its worker", workers, "all of ours", ours, unit="MiB"),
        Line(f"{of}: its server for children, with its front", servers, "all of ours", ours, unit="MiB"),
        Line(f"{of}: all of ours", ours, "its worker", workers, (Bar("worst", LARGEST_MIB),), "MiB", SERVER),
        Line("memory that each took, the program's own with it", [fallen], "all of ours", ours, unit="MiB"),
    ]


def _is_server(process: processes.Identity) -> bool:
    words = Path(f"/proc/{process.pid}/cmdline").read_bytes()
    return b"--role" in words and b"child" in words


if __name__ == "__main__":
    print(table(measure(Scale(int(sys.argv[1]) * 2 if len(sys.argv) > 1 else 20))))
