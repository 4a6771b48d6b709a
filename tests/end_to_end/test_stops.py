"""Stopping a run at every moment of its life: one end, nothing left, and the truth all the while."""

import os
import signal
from contextlib import ExitStack

import pytest

from subagent_server.run import locks
from subagent_server.run.files import Entry
from subagent_server.run.states import MessageStatus, Status
from tests.helpers.turns import asks, says, shell
from tests.helpers.world import BOUND, World


@pytest.mark.race
def test_a_run_stopped_while_it_starts_calls_no_model(world: World) -> None:
    world.agent()
    world.environment["SUBAGENT_WARM"] = "0"  # a warm one has called its model before a test could stop it
    simulator = world.play(says("Never said."))
    accepted = world.start()
    world.stop(accepted, "changed my mind")
    with ExitStack() as held:
        for number in range(os.cpu_count() or 1):
            place = locks.take(Entry.at(world.store.paths.slots.path / f"starting.{number}"))
            assert place is not None
            held.callback(os.close, place)
        forked = world.start()
        world.worker(forked)
        world.stop(forked)
        importing = world.start()
        world.until(importing, lambda meta: meta.status is Status.RUNNING)
        world.stop(importing)
    for run_id in (accepted, forked, importing):
        world.gone(run_id)
        assert world.look(run_id).meta.status is Status.STOPPED
        assert not world.paths(run_id).result.exists()
    assert world.meta(accepted).summary == "changed my mind"
    assert not simulator.requests


@pytest.mark.parametrize("end", ["stopped", "timeout", "crashed"])
def test_a_model_call_in_flight_may_end_and_its_usage_is_settled_and_no_other_call_is_made(
    world: World, end: str
) -> None:
    world.agent(timeoutSeconds=2 if end == "timeout" else 600)
    usage = {"input_tokens": 11, "output_tokens": 22}
    latency = 4 if end == "timeout" else 1
    simulator = world.play(shell("true") | {"latency": latency, "usage": usage}, says("Never said."))
    run_id = world.start()
    simulator.wait_for_requests(1, timeout=BOUND)
    if end == "stopped":
        observed = world.stop(run_id, "enough")
        assert observed.meta.status is Status.STOPPED and observed.live is True, "its tree is not gone yet"
    else:
        if end == "crashed":
            os.kill(world.worker(run_id).pid, signal.SIGTERM)
        assert world.failed(run_id)[0] == end
    world.gone(run_id)
    meta = world.meta(run_id)
    assert (meta.usage.input_tokens, meta.usage.output_tokens, meta.usage.turns) == (11, 22, 1)
    assert not world.events(run_id, "tool_call") and len(simulator.requests) == 1


def test_the_question_of_a_run_that_gets_term_is_cancelled_with_it(world: World) -> None:
    run_id = world.asking_run(asks("Go on?"))
    os.kill(world.worker(run_id).pid, signal.SIGTERM)
    assert world.failed(run_id)[0] == "crashed"
    assert [each.message_status for each in world.meta(run_id).messages] == [MessageStatus.CANCELLED]
