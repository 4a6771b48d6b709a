"""Real clients come over HTTP: they start a run, are asked, answer, get its result, stop one, and find it.

Claude Code, Codex and Gemini CLI have the token that `subagent init --http` has given them.
"""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import pytest

from subagent_server.tools.tool_table import PARENT_TOOLS
from tests.clients.claude_code import ClaudeCode
from tests.clients.driver import BOUND, ParentClient
from tests.clients.http_parents import PARENTS, Place
from tests.clients.installed import Installed
from tests.clients.parent_model import Call, Heard, Say, call
from tests.clients.scene import Scene
from tests.helpers.scale import sampled
from tests.helpers.turns import asks, says
from tests.helpers.wait import wait_for

RUN = call("run_painter", prompt="Paint it.", waitSeconds=60)
ASKS = (asks("Which colour?", "red", "blue"), says("In ${colour}.", capture={"colour": "(red|blue)"}))
ERAS = ["legacy", "modern"]
KILLED = sampled([*product(PARENTS, ERAS)], 3, lambda case: case[0], lambda case: case[1])


def test_it_is_asked_answers_gets_the_result_and_stops_another_run(
    client: ParentClient, scene: Scene
) -> None:
    scene.plays(*ASKS)

    def plan(heard: Heard) -> Call | Say:
        if heard.calls in (0, 2):
            return RUN
        if heard.calls == 1:
            run_id, answer = heard.answer()["runId"], heard.answer()["messages"][0]["options"][1]
            return call("reply_subagent", runId=run_id, answer=answer, waitSeconds=60)
        if heard.calls == 3:
            return call("stop_run", runId=heard.answer()["runId"])
        return Say(f"{heard.answer(1)['updatedMetadata']['result']} Then {heard.answer()['status']}.")

    with scene.world.http_server("--role", "parent") as server:
        client.url = server.url
        outcome = client.talk(plan)
    assert outcome.said == "In blue. Then stopped."
    assert {"run_painter", *(tool.name for tool in PARENT_TOOLS)} <= set(outcome.tools)
    assert "run_painter" in outcome.in_sight


def test_claude_code_finds_its_run_after_its_server_was_killed_and_started_again(
    clients: Installed, scene: Scene
) -> None:
    scene.waits_at_the_gate()
    client, again = ClaudeCode(scene, clients), threading.Event()

    def plan(heard: Heard) -> Call | Say:
        if heard.calls == 0:
            return RUN
        if heard.calls == 1:
            assert again.wait(BOUND), "the server was not started again"
            scene.open_gate()
            return call("wait_for_runs", waitSeconds=60)
        return Say(heard.answer()["runs"][0]["result"])

    with scene.world.http_server("--role", "parent") as server:
        client.url = server.url
        with client.start(plan) as running:
            wait_for(scene.run_ids, BOUND, "a run")
            (run_id,) = scene.run_ids()
            wait_for(lambda: scene.world.events(run_id, "tool_call"), BOUND, "the work of the run")
            server.kill()
            with scene.world.http_server("--role", "parent", port=server.port):
                again.set()
                assert json.loads(running.wait().splitlines()[-1])["result"] == "Painted."
    assert scene.run_ids() == [run_id]


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("parent", PARENTS)
def test_a_program_is_asked_answers_gets_the_result_and_stops_another_run(
    clients: Installed, scene: Scene, parent: str, era: str
) -> None:
    scene.plays(*ASKS)
    with (
        scene.world.http_server() as server,
        PARENTS[parent](Place(server, scene.world.environment, clients, era)) as ask,
    ):
        asked = ask("run_painter", prompt="Paint it.", waitSeconds=40)
        answer = asked["messages"][0]["options"][1]
        replied = ask("reply_subagent", runId=asked["runId"], answer=answer, waitSeconds=40)
        assert replied["updatedMetadata"]["result"] == "In blue."
        other = ask("run_painter", prompt="Paint it again.", waitSeconds=40)
        assert other["messages"] and ask("stop_run", runId=other["runId"])["status"] == "stopped"


@pytest.mark.parametrize(("parent", "era"), KILLED)
def test_a_program_whose_server_is_killed_in_the_middle_of_a_wait_finds_its_run_with_a_new_connection(
    clients: Installed, scene: Scene, parent: str, era: str
) -> None:
    scene.waits_at_the_gate()
    with scene.world.http_server() as server, ThreadPoolExecutor() as beside:
        place = Place(server, scene.world.environment, clients, era)
        with PARENTS[parent](place) as ask:
            run_id = ask("run_painter", prompt="Paint it.")["runId"]
            beside.submit(ask, "wait_for_runs", waitSeconds=40)
            server.kill()
        with (
            scene.world.http_server(port=server.port) as again,
            PARENTS[parent](Place(again, scene.world.environment, clients, era)) as ask,
        ):
            scene.open_gate()
            (view,) = ask("wait_for_runs", waitSeconds=40)["runs"]
            assert (view["runId"], view["result"]) == (run_id, "Painted.")
