"""Runs that carry others on (SPEC sections 5 and 6)."""

import signal
import sys
from typing import Any

import pytest

from subagent_server.extensions.simulator import Simulator
from subagent_server.process.marks import read_shim
from subagent_server.run import processes, transitions
from subagent_server.run.journal import recorded_usage
from subagent_server.run.processes import now
from subagent_server.run.records import Failure
from subagent_server.run.states import Status
from subagent_server.verbs.access import USER
from subagent_server.verbs.continue_run import ContinueOrder, continue_run
from subagent_server.verbs.reconcile import read_exit
from subagent_server.verbs.start import StartOrder, start_agent
from subagent_server.verbs.views import AS_TOOLS, run_view
from tests.helpers.truth import check_status, processes_of
from tests.helpers.turns import Turn, call, says, shell, tool_results
from tests.helpers.wait import wait_for
from tests.helpers.world import BOUND, World, kill


def texts(body: Any, number: int = -1) -> list[str]:
    """Return the texts of a message of a request."""
    return [block["text"] for block in body["messages"][number]["content"] if block["type"] == "text"]


def bodies(simulator: Simulator) -> list[Any]:
    """Return the requests of the model so far."""
    return [request.body for request in simulator.requests]


def continued(world: World, run_id: str, prompt: str | None = None) -> str:
    return continue_run(world.service, ContinueOrder(run_id, prompt)).run_id


def busy() -> Turn:
    """Return a turn whose call leaves a mark and never ends."""
    return {**shell("echo once >> mark; sleep 3600"), "thinking": "I have to leave a mark."}


def test_a_completed_run_goes_on_after_its_result_with_its_conversation_directory_and_label(
    world: World,
) -> None:
    world.agent()
    (world.work / "deep").mkdir()
    (world.work / "deep" / "more.txt").write_text("More.", encoding="utf-8")
    simulator = world.play({**says("First."), "thinking": "Well."}, shell("pwd"), says("Second."))
    first = world.start("Begin.", cwd="deep", label="the label")
    assert world.completed(first) == "First."
    with world.serve() as parent:
        assert "say in `prompt`" in parent.refused("continue_run", runId=first)
        view = parent.call("continue_run", runId=first, prompt="Go on.", inputs=["more.txt"], waitSeconds=60)
    second = view["runId"]
    assert (view["status"], view["result"], view["continuesRunId"]) == ("completed", "Second.", first)
    assert view["label"] == "the label" and view["usage"]["turns"] == 2
    meta = world.meta(second)
    assert meta.continues_run_id == first and meta.root_run_id == second and meta.parent_run_id is None
    sent = bodies(simulator)[1]["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "user"]
    assert [block["type"] for block in sent[1]["content"]] == ["thinking", "text"]
    assert "More." in texts(bodies(simulator)[1])[0] and texts(bodies(simulator)[1])[1] == "Go on."
    assert tool_results(bodies(simulator)[2]) == [str(world.work / "deep")]
    assert world.completed(continued(world, second, "And on."))
    assert len(bodies(simulator)[-1]["messages"]) == 7


@pytest.mark.race
def test_a_call_that_a_kill_or_a_stop_cut_off_is_reported_as_not_known_and_never_repeated(
    world: World,
) -> None:
    simulator = world.agent_saying(busy(), says("Seen."))
    runs = [world.start() for _ in range(3)]
    simulator.wait_for_requests(3, BOUND)
    mark = world.work / "mark"
    wait_for(lambda: mark.exists() and len(mark.read_text("utf-8").split()) == 3, BOUND, "three commands")
    killed, lost, stopped = runs
    kill(world.worker(killed))
    kill(world.shim(lost))
    kill(world.worker(lost))
    world.stop(stopped)
    world.ended(killed)
    for run_id in runs:
        simulator.clear()
        new = continued(world, run_id)
        assert world.completed(new) == "Seen."
        (body,) = bodies(simulator)
        (told,) = tool_results(body)
        assert "not known what this call did" in told and "was not repeated" in told
        assert body["messages"][-1]["content"][0]["is_error"] is True
        assert body["messages"][1]["content"][0]["type"] == "thinking"
        (warning,) = world.events(new, "warning")
        assert "bash" in warning["message"] and run_id in warning["message"]
    assert mark.read_text(encoding="utf-8").count("once") == 3
    assert world.meta(lost).status is Status.FAILED


def test_the_list_of_what_is_to_do_goes_on_with_the_conversation(world: World) -> None:
    world.agent(tools=["TaskCreate", "TaskUpdate", "TaskList"], maxTurns=2)
    made, done = call("task_create", subject="Look"), call("task_update", taskId="1", status="completed")
    simulator = world.play(made, call("task_list"), done, says("Seen."))
    run_id = world.start()
    world.ended(run_id)
    assert world.completed(continued(world, run_id)) == "Seen."
    assert tool_results(bodies(simulator)[-1]) == ["1. [x] Look"]


STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open("alive", "w") as file:
    while True:
        file.write("x")
        file.flush()
        time.sleep(0.02)
"""


def stubborn_run(world: World) -> str:
    """Return a run that works with a child which ignores TERM and has left its session."""
    world.agent()
    (world.work / "stubborn.py").write_text(STUBBORN, encoding="utf-8")
    turn = shell(f"setsid {sys.executable} stubborn.py & sleep 3600")
    world.play(turn, shell("stat -c %s alive; sleep 0.3; stat -c %s alive"), says("Done."))
    run_id = world.start()
    world.until(run_id, lambda meta: (world.work / "alive").exists())
    return run_id


@pytest.mark.race
def test_stopped_and_continued_at_once_there_are_never_two_workers(world: World) -> None:
    first = stubborn_run(world)
    shim = world.shim(first)
    processes.send_signal(shim, signal.SIGSTOP)
    world.stop(first)
    second, other = (continue_run(world.service, ContinueOrder(first)).run_id for _ in range(2))
    for run_id in (second, other):
        wait_for(lambda: read_shim(world.paths(run_id)).get("waitingForRun"), BOUND, "the wait")  # noqa: B023
    view = run_view(world.store, world.look(second), AS_TOOLS)
    assert (view.status, view.waiting_for_run, view.live) == (Status.READY, first, True)
    assert world.stop(other).meta.status is Status.STOPPED
    world.gone(other)
    assert not world.events(other, "run_started"), (
        "it was stopped while it waited, so nothing of it has begun"
    )
    assert processes_of(world.paths(first)) and world.meta(second).status is Status.READY
    processes.send_signal(shim, signal.SIGCONT)
    assert world.completed(second) == "Done."
    (before, after) = tool_results_of(world, second)[-1].split()
    assert before == after, "nothing of the first run was alive when the second began"
    assert world.look(first).live is False


def test_where_nobody_keeps_the_old_run_any_more_the_new_one_ends_what_is_left_of_it(world: World) -> None:
    first = stubborn_run(world)
    kill(world.shim(first))
    kill(world.worker(first))
    raw = world.meta(first)
    failure = Failure(code="crashed", message="It was killed.")
    usage = recorded_usage(world.paths(first))
    world.store.update(first, transitions.RunFailed(failure=failure, usage=usage), now())
    assert raw.status is Status.RUNNING and processes_of(world.paths(first)), "nobody has looked yet"
    request = StartOrder("worker", "", cwd=str(world.work))
    agent = world.service.registry.get("worker")
    second = start_agent(world.service, agent, request, USER, world.meta(first)).run_id
    assert world.completed(second) == "Done."
    (before, after) = tool_results_of(world, second)[-1].split()
    assert before == after and read_exit(world.paths(first))["treeGone"]


def tool_results_of(world: World, run_id: str) -> list[str]:
    return [event["text"] for event in world.events(run_id, "tool_result")]


def test_without_its_file_an_agent_goes_on_as_it_was_only_if_somebody_says_so_and_with_a_warning(
    world: World,
) -> None:
    simulator = world.agent_saying(says("Done."), env={"TOOL_TOKEN": "a-literal-that-is-secret-4711"})
    key = world.environment.pop("ANTHROPIC_API_KEY")
    refused = world.start("The task.")
    assert world.failed(refused)[0] == "config"
    (world.agents / "worker.md").unlink()
    with world.serve() as parent:
        sentence = parent.refused("continue_run", runId=refused)
        assert "is not among the agents here" in sentence and "storedAgent: true" in sentence
        assert world.store.run_ids() == [refused], "nothing was made"
        again = parent.call("continue_run", runId=refused, storedAgent=True, waitSeconds=60)
    assert again["error"]["code"] == "config"
    world.environment["ANTHROPIC_API_KEY"] = key
    order = ContinueOrder(again["runId"], "And this.", stored_agent=True)
    last = continue_run(world.service, order).run_id
    assert world.completed(last) == "Done."
    (warning,) = check_status(world.service, last).warnings or []
    assert "Agent worker is not among the agents here" in warning and "***" in warning
    (body,) = bodies(simulator)
    assert texts(body) == ["The task.", "And this."]
    assert any("not among" in event["message"] for event in world.events(last, "warning"))


def test_an_agent_carries_on_what_a_run_it_started_had_begun(world: World) -> None:
    world.agent("boss", agents=["helper"])
    world.agent("helper", maxTurns=1)
    boss = [
        call("run_helper", prompt="Help.", waitSeconds=60),
        {
            **call("continue_run", runId="${run}", prompt="Go on.", waitSeconds=60),
            "capture": {"run": '"runId": ?"([a-z0-9-]+)"'},
        },
        says("All done."),
    ]
    helper = {"turns": [shell("echo one"), says("Helped.")], "when": {"prompt": "Help"}}
    simulator = world.play(*boss, conversations=[helper])
    run_id = world.start("Lead.", agent="boss")
    assert world.completed(run_id) == "All done."
    first, second = world.store.children_of(run_id)
    assert world.meta(first).error is not None and world.meta(second).continues_run_id == first
    assert (world.meta(second).parent_run_id, world.meta(second).depth) == (run_id, 1)
    last = tool_results(bodies(simulator)[-1])
    assert '"result":"Helped."' in last[0]


def test_a_list_of_models_is_tried_in_its_order_when_one_fails(world: World) -> None:
    world.agent(model=["sonnet", "haiku", "opus"])
    gone = {"status": 404, "message": "no such model"}
    simulator = world.play({**shell("pwd"), "thinking": "Well."}, says("Done.", fault=[gone, gone]))
    run_id = world.start()
    assert world.completed(run_id) == "Done."
    called = [body["model"] for body in bodies(simulator)]
    assert called == ["claude-sonnet-5-5"] * 2 + ["claude-haiku-5-5", "claude-opus-5-5"]
    kinds = [[block["type"] for block in body["messages"][1]["content"]] for body in bodies(simulator)[1:]]
    assert kinds == [["thinking", "tool_use"], ["tool_use"], ["tool_use"]], (
        "no model takes another's thoughts"
    )
    warnings = [event["message"] for event in world.events(run_id, "warning")]
    assert warnings[-1].startswith("The next model, claude-opus-5-5, is tried: The API refused the call (404")
    assert world.completed(continued(world, run_id, "Go on.")), "the first model is tried anew"
    sent = bodies(simulator)[-1]
    assert sent["model"] == "claude-sonnet-5-5"
    assert [block["type"] for block in sent["messages"][1]["content"]] == ["tool_use"]
