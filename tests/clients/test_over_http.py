"""Real clients come over HTTP, with the token that `subagent init --http` has given them."""

import json
import subprocess
import threading

import pytest

from subagent_server.service.tools.table import PARENT_TOOLS
from tests.clients.claude_code import ClaudeCode
from tests.clients.driver import BOUND, ParentClient
from tests.clients.installed import Installed
from tests.clients.parent_model import Call, Heard, Say, call
from tests.clients.scene import Scene
from tests.helpers.processes import REPOSITORY
from tests.helpers.turns import asks, says
from tests.helpers.wait import wait_for

SCRIPT = REPOSITORY / "tests" / "clients" / "over_http.mjs"
RUN = call("run_painter", prompt="Paint it.", waitSeconds=60)
ASKS = (asks("Which colour?", "red", "blue"), says("In ${colour}.", capture={"colour": "(red|blue)"}))


def test_it_is_asked_answers_and_gets_the_result(client: ParentClient, scene: Scene) -> None:
    scene.plays(*ASKS)

    def plan(heard: Heard) -> Call | Say:
        if heard.calls == 0:
            return RUN
        if heard.calls == 1:
            run_id, answer = heard.answer()["runId"], heard.answer()["messages"][0]["options"][1]
            return call("reply_subagent", runId=run_id, answer=answer, waitSeconds=60)
        return Say(heard.answer()["updatedMetadata"]["result"])

    with scene.world.http_server("--role", "parent") as server:
        client.url = server.url
        outcome = client.talk(plan)
    assert outcome.said == "In blue."
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


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_the_sdk_for_typescript_is_asked_answers_from_another_connection_and_stops(
    clients: Installed, scene: Scene, era: str
) -> None:
    scene.plays(*ASKS)
    with scene.world.http_server() as server:
        words = [
            clients.node,
            str(SCRIPT),
            str(clients.typescript),
            server.url,
            server.token("typescript"),
            era,
        ]
        done = subprocess.run(words, capture_output=True, encoding="utf-8", timeout=BOUND, check=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert (seen["result"], seen["stopped"]) == ("In blue.", "completed")
    assert "run_painter" in seen["tools"]


@pytest.mark.parametrize("era", ["legacy", "auto", "modern"])
def test_the_inspector_calls_a_tool_in_each_era(clients: Installed, scene: Scene, era: str) -> None:
    with scene.world.http_server() as server:
        token = f"Authorization: Bearer {server.token('inspector')}"
        where = [server.url, "--transport", "http", "--header", token, "--protocol-era", era]
        words = ["--method", "tools/call", "--tool-name", "run_painter", "--tool-arg", "prompt=Paint."]
        done = subprocess.run(
            [*clients.inspector, *where, *words, "--tool-arg", "waitSeconds=60"],
            env=scene.world.environment,
            capture_output=True,
            encoding="utf-8",
            timeout=BOUND,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["structuredContent"]["result"] == "Painted."
