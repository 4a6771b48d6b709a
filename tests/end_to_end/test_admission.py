"""Who may work at once: slots that the kernel gives back, whatever kills their holder (SPEC section 4)."""

from functools import partial
from typing import Any

import pytest

from subagent_server.run.states import Status
from tests.helpers.truth import check_status
from tests.helpers.turns import asks, call, says, shell, tool_results
from tests.helpers.wait import wait_for
from tests.helpers.world import BOUND, World, kill


def waits_for_slot(world: World, run_id: str) -> bool:
    return check_status(world.service, run_id).waiting_for_slot is True


def test_one_slot_lets_one_run_work_at_a_time_in_their_order_whatever_happens_to_them(world: World) -> None:
    world.agent(maxConcurrent=1)
    conversations = [{"when": {"prompt": "busy"}, "turns": [shell("sleep 3600")]}]
    simulator = world.play(
        shell("echo begin >> trace"), shell("echo end >> trace"), conversations=conversations
    )
    busy = world.start("busy")
    wait_for(lambda: world.events(busy, "tool_call"), BOUND, "a run at work")
    second, third, stopped, killed = (world.start(name) for name in ("second", "third", "stop", "kill"))
    for run_id in (second, third, stopped, killed):
        wait_for(partial(waits_for_slot, world, run_id), BOUND, "a run in the queue")
        assert world.meta(run_id).status is Status.READY and world.look(run_id).live
    assert not waits_for_slot(world, busy)

    assert world.stop(stopped).meta.status is Status.STOPPED
    world.gone(stopped)
    kill(world.shim(killed))
    wait_for(lambda: world.look(killed).meta.error, BOUND, "the end of a run whose shim was killed")
    error = world.meta(killed).error
    assert error is not None and error.code == "launch_failed"
    assert len(simulator.requests) == 1, "nobody else works yet"

    kill(world.worker(busy))
    for run_id in (second, third):
        world.completed(run_id)
    prompts = [_prompt(request.body) for request in simulator.requests]
    assert prompts == ["busy", *["second"] * 3, *["third"] * 3]
    assert (world.work / "trace").read_text(encoding="utf-8").split() == ["begin", "end"] * 2


def test_a_run_that_waits_for_its_parent_gives_its_slot_to_the_next(world: World) -> None:
    world.environment["SUBAGENT_MAX_RUNS"] = "1"
    world.agent()
    conversations = [{"when": {"prompt": "ask"}, "turns": [asks("Colour?"), says("Painted.")]}]
    world.play(says("Worked."), conversations=conversations)
    asking = world.start_asking("ask")
    assert world.completed(world.start("work")) == "Worked."
    assert world.meta(asking).status is Status.WAITING
    world.reply(asking, "blue")
    assert world.completed(asking) == "Painted."


@pytest.mark.parametrize("wait", [60, "60"], ids=["a number", "text"])
def test_a_run_that_waits_for_one_that_it_started_gives_its_slot_to_it(world: World, wait: Any) -> None:
    world.environment["SUBAGENT_MAX_RUNS"] = "1"
    world.agent("boss", agents=["worker"])
    world.agent()
    boss = [call("run_worker", prompt="Help.", waitSeconds=wait), says("All done.")]
    simulator = world.play(says("Worked."), conversations=[{"when": {"prompt": "Lead"}, "turns": boss}])
    assert world.completed(world.start("Lead.", agent="boss")) == "All done."
    assert "Worked." in tool_results(simulator.requests[-1].body)[0]


def _prompt(body: dict[str, list[dict[str, list[dict[str, str]]]]]) -> str:
    return body["messages"][0]["content"][-1]["text"]
