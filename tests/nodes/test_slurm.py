"""Runs on a real Slurm of three nodes: what is its own of the engine."""

import re
import time
from collections.abc import Callable

import pytest

from subagent_server.process import slurm
from subagent_server.run.states import Status
from subagent_server.verbs.continue_run import ContinueOrder, continue_run
from tests.extensions.flows.kills import repeated
from tests.extensions.flows.place import asked, flow
from tests.helpers.turns import asks, call, says, shell
from tests.helpers.wait import wait_for
from tests.helpers.world import API_KEY, BOUND, World
from tests.nodes.cluster import NODES, Cluster
from tests.nodes.conftest import LEASE, holds, lost, over


def test_slurm_keeps_the_key_of_a_sealed_package_and_no_secret(on_slurm: World, cluster: Cluster) -> None:
    world = on_slurm
    world.agent()
    for node in NODES:
        cluster.command("scontrol", "update", f"nodename={node}", "state=drain", "reason=queue")
    run_id = world.start("The secret word is quagga-77.")
    shown = cluster.command("scontrol", "show", "job", "-dd", "-o")
    assert f"JobName={run_id}" in shown and "Requeue=0" in shown
    assert "waits in Slurm" in world.cli("ls").stdout
    kept = max(cluster.home.glob("state/hash.*/job.*/environment"), key=lambda each: each.stat().st_mtime_ns)
    (key,) = re.findall(rb"SUBAGENT_PACKAGE_KEY=([0-9a-f]{64})\x00", kept.read_bytes())
    for secret in (API_KEY, "quagga-77"):
        assert secret not in shown and holds(cluster.home, secret) == []
    assert holds(world.runs, API_KEY) == holds(world.runs, key.decode()) == []
    assert world.paths(run_id).sealed.exists()
    world.stop(run_id)
    over(world, run_id)
    assert not world.paths(run_id).sealed.exists()
    for node in NODES:
        cluster.command("scontrol", "update", f"nodename={node}", "state=resume")


def _cancel(cluster: Cluster, run_id: str) -> None:
    cluster.command("scancel", "--name", run_id)


def _preempt(cluster: Cluster, run_id: str) -> None:
    """Submit a job of more right to all nodes."""
    options = f"--partition=urgent --nodes={len(NODES)} --exclusive --output=/dev/null --chdir=/".split()
    cluster.command("sbatch", *options, f"--comment={run_id}", "--wrap=true")


def _reach_time_limit(cluster: Cluster, run_id: str) -> None:
    """A limit is a minute or more: let it be over soon."""
    job = cluster.command("squeue", "-h", "-o", "%i", "--name", run_id).strip()
    cluster.command("scontrol", "update", f"jobid={job}", "endtime=now+5")


@pytest.mark.parametrize(
    ("end", "code", "sentence"),
    [
        (_cancel, "crashed", "Its job was cancelled in Slurm: continue it, or start it again."),
        (_preempt, "crashed", "Slurm preempted the run for another job: continue it."),
        (
            _reach_time_limit,
            "timeout",
            "Slurm's time limit ended the run: raise `time` in `placement`, then continue it.",
        ),
    ],
)
def test_a_run_names_why_slurm_ends_it(
    on_slurm: World,
    cluster: Cluster,
    end: Callable[[Cluster, str], None],
    code: str,
    sentence: str,
) -> None:
    world = on_slurm
    world.agent_saying(shell("touch begun; sleep 1000"), says("Done."), placement={"time": "10"})
    run_id = world.start()
    wait_for((world.work / "begun").exists, BOUND, "the command")
    end(cluster, run_id)
    assert world.failed(run_id) == (code, sentence)
    over(world, run_id)


def test_nested_runs_work_in_the_allocation_unless_their_file_sends_them_out(
    on_slurm: World, cluster: Cluster
) -> None:
    world = on_slurm
    world.agent("boss", agents=["helper", "scout"])
    world.agent("helper")
    world.agent("scout", placement={"on": "slurm"})
    helps = [call(f"run_{name}", prompt="Help.", waitSeconds=60) for name in ("helper", "scout")]
    boss = [*helps, says("All done.")]
    world.play(says("Helped."), conversations=[{"when": {"prompt": "Lead"}, "turns": boss}])
    run_id = world.start("Lead.", agent="boss")
    assert world.completed(run_id) == "All done."
    launches = {}
    for child in world.store.children_of(run_id):
        assert world.completed(child) == "Helped."
        launches[world.meta(child).agent_name] = world.meta(child).launch
    helper, scout = launches["helper"], launches["scout"]
    assert helper is not None and (helper.kind, helper.host) == ("local", world.look(run_id).node)
    assert scout is not None and (scout.kind, scout.lease) == ("slurm", LEASE)
    for each in (run_id, *world.store.children_of(run_id)):
        over(world, each)


def test_a_killed_node_loses_its_own_runs_alone_and_they_are_continued(
    on_slurm: World, cluster: Cluster
) -> None:
    world = on_slurm
    world.agent_saying(asks("Which colour?"), says("Blue it is."))
    runs = [world.start() for _ in NODES]
    for run_id in runs:
        world.asking(run_id)
    nodes = {run_id: world.look(run_id).node for run_id in runs}
    dead = nodes[runs[0]]
    assert dead is not None and len(set(nodes.values())) == len(NODES), nodes
    cluster.node_kill(dead)
    killed = time.monotonic()
    gone = [run_id for run_id in runs if nodes[run_id] == dead]
    assert world.look(gone[0]).meta.status is Status.WAITING  # not lost at once
    for run_id in gone:
        lost(world, run_id)
    assert time.monotonic() - killed > LEASE
    for run_id in set(runs) - set(gone):
        assert world.look(run_id).live is True
        world.reply(run_id, "blue")
        assert world.completed(run_id) == "Blue it is."
    # Else it takes Slurm half a minute to see that, and it may give the next job to that node.
    cluster.command("scontrol", "update", f"nodename={dead}", "state=down", "reason=killed")
    again = continue_run(world.service, ContinueOrder(gone[0])).run_id
    assert world.completed(again) == "Blue it is."  # it is told that no answer came
    assert world.look(again).node != dead
    cluster.node_up(dead)


def test_a_flow_of_a_killed_node_is_continued_on_another_and_repeats_no_call(
    on_slurm: World, cluster: Cluster
) -> None:
    world = on_slurm
    flow(world)
    simulator = world.play(says("done ${n}", capture={"n": r"task (\w+)"}, latency=1.0))
    run_id = world.start("", "fan", arguments={"many": 8, "limit": 2})

    def having(status: Status) -> int:
        calls = world.store.readable(world.store.children_of(run_id))
        return [meta.status for meta in calls].count(status)

    wait_for(lambda: having(Status.COMPLETED) >= 3, BOUND, "three calls")
    dead = world.look(run_id).node
    assert dead is not None
    cluster.node_kill(dead)
    lost(world, run_id)
    kept = having(Status.COMPLETED)
    assert having(Status.RUNNING) == having(Status.READY) == 0
    cluster.command("scontrol", "update", f"nodename={dead}", "state=down", "reason=killed")
    again = continue_run(world.service, ContinueOrder(run_id)).run_id
    world.ended(again)
    assert world.result(again).output == [f"done {n}" for n in range(8)]
    states = [event["state"] for event in world.events(again, "agent_call")]
    assert states.count("recorded") == kept and repeated(world) == 0 and len(asked(simulator)) == 8
    cluster.node_up(dead)
    over(world, again)


def test_with_slurmctld_dead_runs_are_seen_answered_and_stopped(
    on_slurm: World, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = on_slurm
    run_id = world.asking_run(asks("Which colour?"), asks("Which size?"), says("Done."))
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
