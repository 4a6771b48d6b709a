"""Runs that start runs (SPEC sections 5 and 6, "Recursion")."""

import json
from functools import partial
from typing import Any

from subagent_server.extensions.simulator import Simulator
from subagent_server.run.states import Status
from tests.helpers.turns import asks, call, says, shell, tool_results
from tests.helpers.wait import wait_for
from tests.helpers.world import BOUND, World, kill


def test_an_agent_hands_work_to_one_that_its_file_names_answers_it_and_uses_its_result(world: World) -> None:
    world.agent("boss", agents=["helper"], timeoutSeconds=30)
    world.agent("helper")
    world.agent("stranger")
    answer = call("reply_subagent", runId="${run}", answer="blue", waitSeconds=60)
    boss = [
        call("run_helper", prompt="Help.", waitSeconds=60),
        {**answer, "capture": {"run": '"runId": ?"([a-z0-9-]+)"'}},
        call("run_stranger", prompt="Help."),
        says("All done."),
    ]
    conversations = [{"when": {"prompt": "Lead"}, "turns": boss}]
    simulator = world.play(asks("Which colour?"), says("Helped."), conversations=conversations)
    run_id = world.start("Lead.", agent="boss")
    assert world.completed(run_id) == "All done."
    (child,) = world.store.children_of(run_id)
    meta = world.meta(child)
    assert (meta.agent_name, meta.depth) == ("helper", 1)
    assert meta.parent_run_id == meta.root_run_id == run_id
    assert meta.status is Status.COMPLETED and meta.messages[0].answer_content == "blue"
    bodies = requests_of(simulator, "Lead.")
    offered = {tool["name"] for tool in bodies[0]["tools"]}
    assert {"run_helper", "check_status", "reply_subagent"} <= offered and "run_stranger" not in offered
    replied = json.loads(tool_results(bodies[2])[0])
    assert replied["updatedMetadata"]["result"] == "Helped."
    (refusal,) = tool_results(bodies[3])
    assert "There is no tool 'run_stranger'" in refusal


def test_an_agent_with_more_agents_than_may_have_a_tool_each_starts_them_by_name(world: World) -> None:
    world.environment["SUBAGENT_TOOLS_BUDGET"] = "1000"
    for helper in ("one", "two", "stranger"):
        world.agent(helper)
    world.agent("boss", agents=["one", "two"])
    boss = [
        call("run_agent", agent="two", prompt="Help.", waitSeconds=60),
        call("run_agent", agent="stranger", prompt="Help."),
        call("list_agents", query="stranger"),
        says("All done."),
    ]
    simulator = world.play(says("Helped."), conversations=[{"when": {"prompt": "Lead"}, "turns": boss}])
    assert world.completed(world.start("Lead.", agent="boss")) == "All done."
    bodies = requests_of(simulator, "Lead.")
    offered = {tool["name"] for tool in bodies[0]["tools"]}
    assert {"run_agent", "list_agents", "check_status"} <= offered and not {"run_one", "run_two"} & offered
    assert json.loads(tool_results(bodies[1])[0])["result"] == "Helped."
    assert "the agents here are one, two" in tool_results(bodies[2])[0]
    assert json.loads(tool_results(bodies[3])[0])["agents"] == []


def test_however_a_run_ends_the_runs_it_started_end_too(world: World) -> None:
    world.agent("boss", agents=["helper"])
    world.agent("helper")
    leads = [call("run_helper", prompt="Help."), shell("sleep 3600")]
    world.play(asks("Which colour?"), conversations=[{"when": {"prompt": "Lead"}, "turns": leads}])
    killed, stopped = world.start("Lead.", agent="boss"), world.start("Lead.", agent="boss")
    children = {}
    for run_id in (killed, stopped):
        wait_for(partial(_published, world, run_id), BOUND, "a child")
        (children[run_id],) = world.store.children_of(run_id)
        world.asking(children[run_id])
    kill(world.worker(killed))
    world.stop(stopped)
    for run_id, child in children.items():
        meta = world.ended(child)
        assert meta.status is Status.STOPPED and run_id in (meta.summary or "")
        world.gone(child)
        world.gone(run_id)
    assert world.ended(killed).status is Status.FAILED


def requests_of(simulator: Simulator, task: str) -> list[Any]:
    """Return the requests of the runs with this task."""
    bodies = [request.body for request in simulator.requests]
    return [body for body in bodies if body["messages"][0]["content"][-1]["text"] == task]


def _published(world: World, run_id: str) -> bool:
    """Whether the run has started another: the mark comes before the state."""
    return any(world.paths(child).meta.exists() for child in world.store.children_of(run_id))
