"""Slots: how many work at once, whoever starts them and whoever is killed."""

import os
import signal
from contextlib import ExitStack
from datetime import datetime

import pytest

from subagent_server.run.states import Event
from tests.helpers.mcp_client import Parent
from tests.helpers.scale import times
from tests.helpers.turns import says, shell
from tests.helpers.wait import wait_for
from tests.helpers.world import World

SERVERS, RUNS_EACH, AT_ONCE = 5, times(2, 4), 2
BOUND = 240.0
"""How long all starts of a worker may take, two at a time and niced, on a busy machine."""
UNTIL_ALL_ARE_STARTED = "until [ -e all-are-started ]; do sleep 0.1; done"
"""What the first two runs work on: so all others wait, however slowly runs are started."""


def most_at_work(world: World, run_ids: list[str]) -> int:
    """Return how many runs worked at the same time, by what their journals say."""
    changes: list[tuple[datetime, int]] = []
    for run_id in run_ids:
        (began,) = world.events(run_id, "run_started")
        (ended,) = world.events(run_id, "run_ended")
        changes += [(datetime.fromisoformat(began["at"]), 1), (datetime.fromisoformat(ended["at"]), -1)]
    at_work = most = 0
    for _, change in sorted(changes):
        at_work += change
        most = max(most, at_work)
    return most


def waits_for_a_slot(server: Parent, run_id: str) -> bool:
    """Whether the view of a run says so."""
    view = server.call("check_status", runId=run_id)
    assert view["status"] == "ready"
    return bool(view.get("waitingForSlot"))


@pytest.mark.timeout(BOUND + 60)
def test_of_the_runs_of_five_servers_two_work_at_once_each_begins_once_and_all_end(world: World) -> None:
    world.agent(maxConcurrent=AT_ONCE)
    first = {"when": {"prompt": "first"}, "turns": [shell(UNTIL_ALL_ARE_STARTED), says("Done.")]}
    simulator = world.play(says("Done.", latency=0.2), conversations=[first])
    run_ids: list[str] = []
    with ExitStack() as stack:
        servers = [stack.enter_context(world.serve()) for _ in range(SERVERS)]
        for number, server in enumerate(servers):
            for _ in range(RUNS_EACH):
                view = server.call(
                    "run_worker", prompt="Be the first." if len(run_ids) < AT_ONCE else "Do it."
                )
                run_ids.append(view["runId"])
            if number in (1, 3):
                os.kill(server.server.pid, signal.SIGKILL)
        wait_for(lambda: waits_for_a_slot(servers[0], run_ids[-1]), 60, "the last run in the queue")
        (world.work / "all-are-started").touch()
    wait_for(lambda: all(world.meta(r).status.is_terminal for r in run_ids), BOUND, "the end of all runs")
    assert len(set(run_ids)) == SERVERS * RUNS_EACH
    assert [world.meta(run_id).status.value for run_id in run_ids] == ["completed"] * len(run_ids)
    for run_id in run_ids:
        world.gone(run_id)
        starts = [step for step in world.meta(run_id).transitions if step.event is Event.WORKER_STARTED]
        assert len(starts) == 1
    assert len(simulator.requests) == len(run_ids) + AT_ONCE, "each asks once, the first ones twice"
    assert most_at_work(world, run_ids) == AT_ONCE
