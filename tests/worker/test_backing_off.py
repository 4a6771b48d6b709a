"""Many runs, one API: one that meets 429 or 529 holds the others back, and no wait outlives its run."""

from typing import Any

from subagent_server.domain.states import Status
from subagent_server.simulator import Simulator
from tests.helpers.turns import Turn, says
from tests.helpers.wait import wait_for
from tests.helpers.world import API_KEY, BOUND, World

BUSY: Turn = says("Never said.", fault={"status": 429, "retry_after": 100, "times": "always"})


def test_a_run_that_is_told_to_wait_holds_the_others_back_and_stop_and_time_end_the_wait(
    world: World,
) -> None:
    world.agent()
    world.agent("hasty", timeoutSeconds=2)
    simulator = world.play(BUSY)
    first = world.start()
    wait_for(lambda: world.events(first, "warning"), BOUND, "the first run to meet a busy API")
    assert "the API limits the rate (429); trying again in 1" in world.events(first, "warning")[0]["message"]
    second, hasty = world.start(), world.start(agent="hasty")
    wait_for(lambda: world.events(second, "warning"), BOUND, "the second run to be held back")
    assert "other runs met a busy API" in world.events(second, "warning")[0]["message"]
    assert "other runs met a busy API" in world.paths(second).log.path.read_text(encoding="utf-8")
    assert world.failed(hasty)[0] == "timeout"
    assert world.stop(second).meta.status is Status.STOPPED
    world.gone(second)
    world.gone(hasty)
    assert world.stop(first).meta.status is Status.STOPPED
    assert len(simulator.requests) == 1, "the others never called"
    (file,) = (world.runs / ".backoff").iterdir()
    assert API_KEY not in file.read_text(encoding="utf-8")


def test_runs_go_on_by_themselves_when_the_hold_is_over(world: World) -> None:
    world.agent()
    seen: list[Any] = []

    def answer(body: dict[str, Any]) -> Turn:
        seen.append(body)
        return says("Done.", fault={"status": 529, "retry_after": 1} if len(seen) == 1 else [])

    with Simulator(answer) as simulator:
        world.environment["ANTHROPIC_BASE_URL"] = simulator.base_url
        runs = [world.start() for _ in range(3)]
        assert [world.completed(run_id) for run_id in runs] == ["Done."] * 3
        assert len(simulator.requests) == 4
    told = [event["message"] for run_id in runs for event in world.events(run_id, "warning")]
    assert any("overloaded (529)" in message for message in told)
