"""Whatever of a run is killed, its files soon say what is true, and nothing of it is left."""

import json

from subagent_server.run.states import Status
from tests.helpers.truth import processes_of
from tests.helpers.turns import asks, calls, says, use
from tests.helpers.wait import wait_for
from tests.helpers.world import BOUND, World, kill

TOLD_WITHIN = 60.0
"""Seconds from the death of a worker to the truth in the raw file, which nobody reads; alone less than 3."""

BUSY = calls(use("bash", command="sleep 3600 & setsid sleep 3600 & sleep 3600"), text="I wait for it.")


def until_busy(world: World, run_id: str) -> None:
    """Return when the commands of `BUSY` run, so far as anybody can see."""
    wait_for(lambda: len(processes_of(world.paths(run_id))) >= 6, BOUND, "the programs of a run")


def test_a_killed_worker_shows_in_the_raw_file_without_a_server_and_a_reader(world: World) -> None:
    world.agent()
    world.play(conversations=[{"when": {"prompt": "ask"}, "turns": [asks("Colour?")]}], turns=[BUSY])
    busy, asking = world.start("work"), world.start("ask")
    until_busy(world, busy)
    world.asking(asking)
    for run_id in (busy, asking):
        kill(world.worker(run_id))
        world.ended(run_id, TOLD_WITHIN)
        meta = json.loads(world.paths(run_id).meta.path.read_bytes())
        assert (meta["status"], meta["error"]["code"]) == ("failed", "crashed")
        assert "SIGKILL" in meta["error"]["message"] and meta["error"]["hint"]
        world.gone(run_id)
        (end,) = world.events(run_id, "run_ended")
        assert end["status"] == "failed" and end["error"]["code"] == "crashed"
    assert world.meta(busy).usage.turns == 1, "what it has cost comes from the journal"
    assert [m.message_status.value for m in world.meta(asking).messages] == ["cancelled"]
    assert world.meta(asking).pending_questions == 0


def test_a_run_whose_shim_was_killed_keeps_the_result_that_it_came_to(world: World) -> None:
    simulator = world.agent_saying(says("Done all the same.", latency=0.5))
    run_id = world.start()
    simulator.wait_for_requests(1, timeout=BOUND)
    kill(world.shim(run_id))
    assert world.completed_and_gone(run_id) == "Done all the same."
    observed = world.look(run_id)
    assert observed.meta.status is Status.COMPLETED and observed.live is False
