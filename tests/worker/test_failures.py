"""How a run ends when what it needs is not there."""

import socket

from subagent_server.domain.states import Status
from tests.helpers.turns import says
from tests.helpers.wait import wait_for
from tests.helpers.world import BOUND, World


def test_a_missing_key_fails_the_run_with_config_and_names_the_variable(world: World) -> None:
    world.agent(apiKeyEnv="OTHER_API_KEY")
    simulator = world.play(says("Never said."))
    run_id = world.start()
    code, message = world.failed(run_id)
    assert code == "config" and "OTHER_API_KEY is not set" in message
    error = world.meta(run_id).error
    assert error is not None and "OTHER_API_KEY" in (error.hint or "")
    assert not simulator.requests


def test_an_api_out_of_reach_is_tried_again_with_warnings_until_the_run_is_stopped(world: World) -> None:
    world.agent()
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        world.environment["ANTHROPIC_BASE_URL"] = f"http://127.0.0.1:{closed.getsockname()[1]}"
        run_id = world.start()
        wait_for(lambda: len(world.events(run_id, "warning")) >= 2, BOUND, "two attempts")
        assert "the connection to the API failed" in world.events(run_id, "warning")[0]["message"]
        assert world.meta(run_id).status is Status.RUNNING
        assert world.stop(run_id, "no network").meta.status is Status.STOPPED
        world.gone(run_id)


def test_what_the_api_refuses_is_told_with_a_hint(world: World) -> None:
    world.agent()
    world.play(says("Never said.", fault={"status": 401, "message": "invalid x-api-key"}))
    run_id = world.start()
    code, message = world.failed(run_id)
    assert code == "model_error" and "401" in message and "invalid x-api-key" in message
    error = world.meta(run_id).error
    assert error is not None and "ANTHROPIC_API_KEY" in (error.hint or "")


def test_a_working_directory_that_has_gone_meanwhile_is_named(world: World) -> None:
    world.agent(maxConcurrent=1)
    world.play(says("Done.", latency=0.5))
    place = world.home / "place"
    place.mkdir()
    first, second = world.start(), world.start(cwd=str(place))
    place.rmdir()
    world.completed(first)
    code, message = world.failed(second)
    assert code == "config" and str(place) in message
