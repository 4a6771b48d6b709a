"""Claude Code, Codex and Gemini CLI hand work to a subagent, with models that are scripted."""

from subagent_server.tools.tool_table import PARENT_TOOLS
from tests.clients.driver import BOUND, ParentClient
from tests.clients.parent_model import Call, Heard, Say, call
from tests.clients.scene import Scene
from tests.helpers.turns import asks, says
from tests.helpers.wait import wait_for

RUN = call("run_painter", prompt="Paint it.", waitSeconds=60)
LOOKS = 15
"""How often a plan looks before it gives up."""


def test_it_lists_the_tools_and_gets_the_result_of_a_run(client: ParentClient) -> None:
    def plan(heard: Heard) -> Call | Say:
        return RUN if heard.calls == 0 else Say(heard.answer()["result"])

    outcome = client.talk(plan)
    assert sorted(outcome.tools) == sorted(["run_painter", *(tool.name for tool in PARENT_TOOLS)])
    assert {"run_painter", "wait_for_runs", "reply_subagent"} <= set(outcome.in_sight)
    assert outcome.said == "Painted." and len(outcome.answers) == 1


def test_it_is_asked_answers_and_gets_the_result(client: ParentClient, scene: Scene) -> None:
    scene.plays(asks("Which colour?", "red", "blue"), says("In ${colour}.", capture={"colour": "(red|blue)"}))

    def plan(heard: Heard) -> Call | Say:
        if heard.calls == 0:
            return RUN
        if heard.calls == 1:
            run_id, answer = heard.answer()["runId"], heard.answer()["messages"][0]["options"][1]
            return call("reply_subagent", runId=run_id, answer=answer, waitSeconds=60)
        return Say(heard.answer()["updatedMetadata"]["result"])

    assert client.talk(plan).said == "In blue."


def test_it_stops_a_run(client: ParentClient, scene: Scene) -> None:
    scene.waits_at_the_gate()

    def plan(heard: Heard) -> Call | Say:
        if heard.calls == 0:
            return call("run_painter", prompt="Paint it.")
        if heard.calls == 1:
            return call("stop_run", runId=heard.answer()["runId"], reason="Too slow.")
        return Say(heard.answer()["status"])

    assert client.talk(plan).said == "stopped"
    (run_id,) = scene.run_ids()
    scene.world.gone(run_id)


def test_a_call_that_outlasts_its_patience_does_not_lose_the_run(client: ParentClient, scene: Scene) -> None:
    scene.waits_at_the_gate()
    client.impatient = True

    def plan(heard: Heard) -> Call | Say:
        if heard.calls == 0:
            return RUN
        if heard.calls == 1:
            scene.open_gate()  # it has given up
            return call("list_runs")
        run_id = heard.answer(1)["runs"][0]["runId"]
        found = heard.answer().get("runs", []) if heard.calls > 2 else []
        if not any(run.get("result") for run in found) and heard.calls < LOOKS:
            return call("wait_for_runs", runIds=[run_id], waitSeconds=4)
        return Say(found[0]["result"])

    outcome = client.talk(plan)
    assert "runId" not in outcome.answers[0]
    assert outcome.said == "Painted." and len(scene.run_ids()) == 1


def test_killed_while_it_waits_and_started_again_it_finds_its_run(client: ParentClient, scene: Scene) -> None:
    scene.waits_at_the_gate()
    world = scene.world
    with client.start(lambda heard: RUN) as running:
        wait_for(scene.run_ids, BOUND, "a run")
        (run_id,) = scene.run_ids()
        wait_for(lambda: world.events(run_id, "tool_call"), BOUND, "the work of the run")
        running.kill()
        client.server_is_gone()
    assert world.look(run_id).live and world.meta(run_id).status == "running"

    def plan(heard: Heard) -> Call | Say:
        if heard.calls == 0:
            return call("list_runs", status="running")
        scene.open_gate()
        found = heard.answer(0)["runs"][0]["runId"]
        views = heard.answer()["runs"] if heard.calls > 1 else []
        if not any(view.get("result") for view in views) and heard.calls < LOOKS:
            return call("wait_for_runs", runIds=[found], waitSeconds=30)
        return Say(f"{views[0]['runId']} {views[0]['result']}")

    assert client.talk(plan).said == f"{run_id} Painted."
