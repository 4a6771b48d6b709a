"""Runs on a real Slurm of three nodes live, ask, end and die as they do here, and nothing is done twice."""

import json
import time
from pathlib import Path

import pytest

from subagent_server.process import slurm
from subagent_server.run.states import Status
from subagent_server.verbs.continue_run import ContinueOrder, continue_run
from tests.helpers.turns import asks, says, shell
from tests.helpers.wait import wait_for
from tests.helpers.world import API_KEY, BOUND, World
from tests.nodes.cluster import NODES, Cluster
from tests.nodes.conftest import LEASE


def holds(root: Path, secret: str) -> list[str]:
    """Return the files below a directory that hold a text."""
    files = (file for file in root.rglob("*") if file.is_file() and file.name != "s.lock")  # of munged
    return [str(file) for file in files if secret.encode() in file.read_bytes()]


def over(world: World, run_id: str, seconds: float = BOUND) -> None:
    """Return as soon as every reader says that nothing of a run lives."""
    wait_for(lambda: world.look(run_id).live is False, seconds, f"the end of all of run {run_id}")


def test_a_run_on_a_node_asks_is_answered_and_ends(world: World, cluster: Cluster) -> None:
    world.play(asks("Which colour?"), says("Blue it is."))
    world.agent()
    run_id = world.start("The secret word is quagga-77.")
    world.asking(run_id)
    node = world.look(run_id).node
    assert node in NODES and f"its processes live on {node}" in world.cli("show", run_id).stdout
    shown = cluster.command("scontrol", "show", "job", "-dd")
    assert run_id in shown
    for secret in (API_KEY, "quagga-77"):
        assert secret not in shown and holds(cluster.home, secret) == []
    assert holds(world.runs, API_KEY) == []
    world.reply(run_id, "blue")
    assert world.completed(run_id) == "Blue it is."
    over(world, run_id)


def test_a_stop_ends_the_tree_on_its_node(world: World) -> None:
    world.play(shell("touch begun; sleep 1000"), says("Done."))
    world.agent()
    run_id = world.start()
    wait_for((world.work / "begun").exists, BOUND, "the command")
    assert world.stop(run_id).meta.status is Status.STOPPED
    over(world, run_id)
    assert json.loads(world.paths(run_id).exit.read(4096))["treeGone"] is True


def test_a_job_that_is_cancelled_says_so(world: World, cluster: Cluster) -> None:
    world.play(shell("touch begun; sleep 1000"), says("Done."))
    world.agent()
    run_id = world.start()
    wait_for((world.work / "begun").exists, BOUND, "the command")
    cluster.command("scancel", "--name", run_id)
    code, message = world.failed(run_id)
    assert (code, message) == ("crashed", "Its job was cancelled in Slurm: continue it, or start it again.")
    over(world, run_id)


def test_a_killed_node_loses_its_own_runs_alone_and_they_are_continued(
    world: World, cluster: Cluster
) -> None:
    world.play(asks("Which colour?"), says("Blue it is."))
    world.agent()
    runs = [world.start() for _ in range(6)]
    for run_id in runs:
        world.asking(run_id)
    nodes = {run_id: world.look(run_id).node for run_id in runs}
    dead = nodes[runs[0]]
    assert dead is not None and len(set(nodes.values())) == len(NODES), nodes
    cluster.node_kill(dead)
    killed = time.monotonic()
    lost = [run_id for run_id in runs if nodes[run_id] == dead]
    seen = world.look(lost[0])
    assert seen.meta.status is Status.WAITING  # not lost at once
    for run_id in lost:
        wait_for(lambda run_id=run_id: world.look(run_id).meta.status.is_terminal, BOUND, "the verdict")  # type: ignore[misc]
        assert world.failed(run_id)[0] == "lost"
    assert time.monotonic() - killed > LEASE
    for run_id in set(runs) - set(lost):
        assert world.look(run_id).live is True
        world.reply(run_id, "blue")
        assert world.completed(run_id) == "Blue it is."
    again = continue_run(world.service, ContinueOrder(lost[0])).run_id
    world.asking(again)
    assert world.look(again).node != dead
    world.stop(again)
    cluster.node_up(dead)


def test_with_slurmctld_dead_runs_are_seen_answered_and_stopped(
    world: World, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.play(asks("Which colour?"), asks("Which size?"), says("Done."))
    world.agent()
    run_id = world.start()
    world.asking(run_id)
    cluster.controller_kill()
    monkeypatch.setattr(slurm, "_asked", {"until": -1.0, "sights": None})
    try:
        for words in (["ls"], ["show", run_id], ["reply", run_id, "blue"]):
            assert world.cli(*words).returncode == 0
        world.until(run_id, lambda meta: len(meta.messages) == 2)
        assert world.cli("stop", run_id).returncode == 0
        over(world, run_id)
    finally:
        cluster.controller_up()
