"""The server dies and nothing is lost, because nothing lives in it."""

import os
import signal

from tests.helpers.turns import says
from tests.helpers.world import World


def test_the_whole_process_group_of_a_server_is_killed_in_mid_run_and_the_run_completes(world: World) -> None:
    world.agent()
    simulator = world.play(says("Done.", latency=1))
    with world.serve() as parent:
        run_id = parent.call("run_worker", prompt="Work.")["runId"]
        simulator.wait_for_requests(1, timeout=60)
        os.killpg(os.getpgid(parent.server.pid), signal.SIGKILL)
    assert world.completed(run_id) == "Done."
    assert len(simulator.requests) == 1
