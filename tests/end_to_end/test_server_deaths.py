"""The server dies and nothing is lost, because nothing lives in it."""

import os
import signal

from tests.helpers.turns import asks, says
from tests.helpers.world import World, kill


def test_a_server_killed_while_a_run_waits_is_replaced_by_one_that_shows_the_question(world: World) -> None:
    world.agent()
    world.play(asks("Which colour?", "red", "blue"), says("Painted."))
    with world.serve("--role", "parent") as parent:
        run_id = parent.call("run_worker", prompt="Paint it.")["runId"]
        world.asking(run_id)
        kill(parent.server)
    with world.serve("--role", "parent") as parent:
        (row,) = parent.call("list_runs")["runs"]
        assert row["runId"] == run_id and row["pendingQuestions"] == 1 and row["live"]
        (view,) = parent.call("wait_for_runs", runIds=[run_id])["runs"]
        assert view["messages"][0]["question"] == "Which colour?"
        answer = parent.call("reply_subagent", runId=run_id, answer="blue", waitSeconds=60)
        assert answer["updatedMetadata"]["result"] == "Painted."


def test_the_whole_process_group_of_a_server_is_killed_in_mid_run_and_the_run_completes(world: World) -> None:
    world.agent()
    simulator = world.play(says("Done.", latency=1))
    with world.serve() as parent:
        run_id = parent.call("run_worker", prompt="Work.")["runId"]
        simulator.wait_for_requests(1, timeout=60)
        os.killpg(os.getpgid(parent.server.pid), signal.SIGKILL)
    assert world.completed(run_id) == "Done."
    assert len(simulator.requests) == 1
