"""Runs that carry others on (SPEC sections 5 and 6)."""

from typing import Any

from subagent_server.domain.states import Status
from subagent_server.simulator import Simulator
from tests.helpers.turns import Turn, asks, call, says, shell, tool_results
from tests.helpers.world import BOUND, World, kill


def texts(body: Any, number: int = -1) -> list[str]:
    """Return the texts of a message of a request."""
    return [block["text"] for block in body["messages"][number]["content"] if block["type"] == "text"]


def bodies(simulator: Simulator) -> list[Any]:
    """Return the requests of the model so far."""
    return [request.body for request in simulator.requests]


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
        view = parent.call("continue_run", runId=first, prompt="Go on.", inputs=["more.txt"], waitSeconds=40)
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
    assert f"continues {first}" in " ".join(world.cli("show", second).stdout.split())
    third = world.cli("continue", second, "And on.", "--wait", "40")
    assert third.returncode == 0 and third.stdout.strip()
    assert len(bodies(simulator)[-1]["messages"]) == 7


def test_a_call_whose_end_is_not_known_is_told_and_never_repeated_whatever_ended_the_run(
    world: World,
) -> None:
    world.agent()
    simulator = world.play(busy(), says("Seen."))
    runs = [world.start() for _ in range(3)]
    simulator.wait_for_requests(3, BOUND)
    for run_id in runs:
        world.until(run_id, lambda meta: bool(world.events(meta.run_id, "tool_call")))
    killed, lost, stopped = runs
    with world.serve() as parent:
        assert "cannot be continued yet" in parent.refused("continue_run", runId=killed)
    kill(world.worker(killed))
    kill(world.keeper(lost))
    kill(world.worker(lost))
    world.stop(stopped)
    world.ended(killed)
    for run_id in runs:
        simulator.clear()
        done = world.cli("continue", run_id)
        assert (done.returncode, done.stdout) == (0, "Seen.\n"), done.stderr
        (body,) = bodies(simulator)
        (told,) = tool_results(body)
        assert "not known what this call did" in told and "was not repeated" in told
        assert body["messages"][-1]["content"][0]["is_error"] is True
        assert body["messages"][1]["content"][0]["type"] == "thinking"
        (warning,) = world.events(world.store.run_ids()[0], "warning")
        assert "bash" in warning["message"] and run_id in warning["message"]
    assert (world.work / "mark").read_text(encoding="utf-8").count("once") == 3
    assert world.meta(lost).status is Status.FAILED


def test_an_answer_that_came_is_given_and_one_that_did_not_is_told(world: World) -> None:
    world.agent()
    world.play(asks("Which colour?"), says("Done."))
    open_one, answered = world.start(), world.start()
    for run_id in (open_one, answered):
        world.asking(run_id)
        kill(world.keeper(run_id))
        kill(world.worker(run_id))
    raw = world.paths(answered).meta
    told = raw.read_text(encoding="utf-8").replace(
        '"messageStatus": "pending_parent_reply"',
        '"answerContent": "blue", "messageStatus": "parent_replied"',
    )
    raw.write_text(told.replace('"pendingQuestions": 1', '"pendingQuestions": 0'), encoding="utf-8")
    simulator = world.play(asks("Which colour?"), says("Done."))
    for run_id, words in ((open_one, "Ask again"), (answered, "blue")):
        simulator.clear()
        assert world.cli("continue", run_id).returncode == 0
        assert words in tool_results(bodies(simulator)[0])[0]
    world.abandoned.add(answered)


def test_stopped_and_continued_at_once_there_are_never_two_workers(world: World) -> None:
    world.agent()
    stubborn = "trap '' TERM; while :; do echo $$ >> alive; sleep 0.02; done"
    simulator = world.play(call("bash", command=f"setsid bash -c {stubborn!r}"), says("Done."))
    run_id = world.start()
    world.until(run_id, lambda meta: (world.work / "alive").exists())
    world.stop(run_id)
    done = world.cli("continue", run_id, "--detach")
    assert done.returncode == 0, done.stderr
    second = done.stdout.strip()
    world.until(second, lambda meta: world.look(run_id).live is False or meta.status is Status.READY)
    assert world.completed(second) == "Done."
    assert simulator.requests
