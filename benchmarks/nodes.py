"""Runs on a Slurm of three nodes of this machine: `make bench-nodes`, N=200. Not a part of `make bench`.

Prints one line for each figure, with its bar. The queue is measured with the nodes drained:
200 workers on one machine would measure the machine.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from subagent_server.run.states import MessageStatus
from tests.helpers.turns import asks, says
from tests.helpers.world import World
from tests.nodes.cluster import NODES, Cluster

FEW = 9
START_MS, WORK_SECONDS, REPLY_SECONDS, QUEUE_SECONDS = 100.0, 2.5, 3.0, 20.0


def main(count: int) -> int:
    """Measure, with `count` runs in the queue; return 1 if a bar is missed."""
    with tempfile.TemporaryDirectory(prefix="nodes", ignore_cleanup_errors=True) as directory:
        home = Path(directory)
        for name in ("slurm", "world"):
            (home / name).mkdir()
        with Cluster(home / "slurm") as cluster:
            os.environ.update(cluster.environment)
            world = World(home / "world")
            world.environment |= {**cluster.environment, "SUBAGENT_LAUNCHER": "slurm", "SUBAGENT_WARM": "0"}
            world.play(asks("Which colour?"), says("Blue it is."))
            world.agent()
            lines = [*_at_work(world), _queue(world, cluster, count)]
            world.close()
    for line, _ in lines:
        print(line)
    return 0 if all(is_met for _, is_met in lines) else 1


def _at_work(world: World) -> list[tuple[str, bool]]:
    plain = [_seconds(_plain_job) for _ in range(FEW)]
    started: list[str] = []
    starts = [_seconds(lambda: started.append(world.start())) for _ in range(FEW)]
    for run_id in started:
        world.asking(run_id)
    works = [_until_work(world) for _ in range(FEW)]
    world.environment["SUBAGENT_LAUNCHER"] = "local"
    here = [_until_work(world) for _ in range(FEW)]
    world.environment["SUBAGENT_LAUNCHER"] = "slurm"
    nodes = Counter(world.look(run_id).node for run_id in started)
    replies = [_seconds(lambda each=run_id: _acknowledged(world, each)) for run_id in started]  # type: ignore[misc]
    beside = 1000 * (statistics.median(starts) - statistics.median(plain))
    return [
        _line("a start answers, beside sbatch", beside, START_MS, "ms"),
        _line(
            f"from the start to work ({statistics.median(here):.2g} s on this host, cold)",
            statistics.median(works),
            WORK_SECONDS,
            "s",
        ),
        _line("from the answer to its acknowledgement", statistics.median(replies), REPLY_SECONDS, "s"),
        (f"spread: {dict(sorted((str(k), v) for k, v in nodes.items()))}", len(nodes) == len(NODES)),
    ]


def _queue(world: World, cluster: Cluster, count: int) -> tuple[str, bool]:
    for node in NODES:
        cluster.command("scontrol", "update", f"nodename={node}", "state=drain", "reason=queue")
    runs: list[str] = []
    seconds = _seconds(lambda: runs.extend(world.start() for _ in range(count)))
    for run_id in runs:
        world.stop(run_id)
    for node in NODES:
        cluster.command("scontrol", "update", f"nodename={node}", "state=resume")
    return _line(f"{count} runs submitted, one after the other", seconds, QUEUE_SECONDS, "s")


def _plain_job() -> None:
    words = ["sbatch", "--parsable", "--output=/dev/null"]
    subprocess.run(words, input=b"#!/bin/sh\ntrue\n", check=True, stdout=subprocess.DEVNULL, cwd="/")


def _until_work(world: World) -> float:
    """Return the seconds from the start of a run, on a machine without another one, to its work."""
    run_id = world.start()
    meta = world.asking(run_id)
    world.stop(run_id)
    assert meta.started_at is not None
    return (meta.started_at - meta.created_at).total_seconds()


def _acknowledged(world: World, run_id: str) -> None:
    world.reply(run_id, "blue")
    acknowledged = MessageStatus.ACKNOWLEDGED
    world.until(run_id, lambda meta: meta.messages[0].message_status is acknowledged)


def _seconds(act: Callable[[], object]) -> float:
    begun = time.monotonic()
    act()
    return time.monotonic() - begun


def _line(what: str, figure: float, bar: float, unit: str) -> tuple[str, bool]:
    verdict = "" if figure <= bar else "  MISSED"
    return f"{what}: {figure:.3g} {unit} (bar {bar:g} {unit}){verdict}", figure <= bar


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 200))
