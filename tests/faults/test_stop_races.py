"""Stopping a run that is just ending: one end, and a result that was there is kept."""

from contextlib import ExitStack

import pytest

from subagent_server.verbs.examine import examine
from tests.helpers.processes import Child
from tests.helpers.turns import says
from tests.helpers.wait import wait_for
from tests.helpers.world import World

pytestmark = pytest.mark.race

STOPPER = """
    import sys
    from pathlib import Path
    from subagent_server.run import transitions
    from subagent_server.run.processes import now
    from subagent_server.run.store import RunStore
    store = RunStore(Path(sys.argv[1]))
    print("ready", flush=True)
    for line in sys.stdin:
        ended = store.update(line.strip(), transitions.StopRequested(reason="enough"), now())
        print(ended.status, flush=True)
"""


def test_whole_runs_that_are_stopped_while_they_end_have_one_end_and_nothing_is_left(world: World) -> None:
    simulator = world.agent_saying(says("Done.", latency=0.05))
    run_ids = [world.start() for _ in range(4)]
    with ExitStack() as stack:
        racers = [stack.enter_context(Child(STOPPER, world.runs)) for _ in run_ids]
        for racer in racers:
            assert racer.hear() == "ready"
        simulator.wait_for_requests(1, 60)
        for run_id, racer in zip(run_ids, racers, strict=True):
            racer.tell(run_id)
        told = [racer.hear() for racer in racers]
    wait_for(lambda: all(world.look(r).live is False for r in run_ids), 60, "the end of all")
    assert [world.meta(run_id).status.value for run_id in run_ids] == told
    for run_id in run_ids:
        assert not list(examine(world.store, [run_id], {}))
