"""A program that a run has started speaks to the run's parent, and to nobody else."""

from contextlib import AbstractContextManager

from subagent_server.run.states import MessageStatus, Status
from tests.helpers.mcp_client import BOUND, Parent
from tests.helpers.turns import asks, says, shell
from tests.helpers.wait import wait_for
from tests.helpers.world import World


def child_of(world: World, run_id: str) -> AbstractContextManager[Parent]:
    """Start a server as a program of the run would, and give its client."""
    return world.serve(env=world.given_to(run_id))


def test_a_child_asks_its_parent_and_takes_the_answer_with_and_without_waiting(world: World) -> None:
    world.agent_saying(asks("Not yours."), says("Done."))
    run_id, other = world.start_asking(), world.start_asking()
    with child_of(world, run_id) as child, world.serve("--role", "parent") as parent:
        assert [tool.name for tool in child.tools()] == ["check_status", "ask_parent", "update_status"]
        waiting = child.begin("ask_parent", question="Which colour?", options=["red", "blue"], waitSeconds=60)
        world.asking(run_id, 2)
        view = parent.call("check_status", runId=run_id)
        assert [m["question"] for m in view["messages"]] == ["Not yours.", "Which colour?"]
        parent.call("reply_subagent", runId=run_id, messageId="q2", answer="blue")
        answer = waiting.result(BOUND)
        assert (answer["messageId"], answer["answer"]) == ("q2", "blue")
        assert world.meta(run_id).messages[1].message_status.value == "acknowledged_by_subagent"

        asked = child.call("ask_parent", question="Which size?", waitSeconds=0)
        assert "answer" not in asked
        assert f'check_status(runId="{run_id}", messageId="q3"' in asked["instructions"]
        waiting = child.begin("check_status", runId=run_id, messageId="q3", waitSeconds=60)
        parent.call("reply_subagent", runId=run_id, messageId="q3", answer="large")
        view = waiting.result(BOUND)
        assert view["status"] == "parent_replied", "the state before the acknowledgement"
        assert view["messages"][-1]["answer"] == "large"
        assert world.meta(run_id).messages[2].message_status.value == "acknowledged_by_subagent"
        assert child.call("check_status", runId=run_id)["status"] == "waiting_parent_reply"

        for tool, arguments in (
            ("check_status", {"runId": other}),
            ("ask_parent", {"runId": other, "question": "Why?"}),
            ("update_status", {"runId": other, "status": "completed"}),
        ):
            assert f"Run {other} is not open to run {run_id}" in child.refused(tool, **arguments)
        assert "There is no tool 'stop_run'" in child.refused("stop_run", runId=run_id)
    assert world.meta(other).status is Status.WAITING


def test_a_child_reports_how_far_it_is_and_ends_its_run_with_a_payload(world: World) -> None:
    world.agent_saying(shell("sleep 3600"))
    run_id = world.start()
    wait_for(lambda: world.events(run_id, "tool_call"), BOUND, "a run at work")
    payload = "lïne\n" * 10_000
    with world.serve() as parent:
        with child_of(world, run_id) as child:
            assert child.call("update_status", status="running", summary="half way")["summary"] == "half way"
            assert parent.call("check_status", runId=run_id)["summary"] == "half way"
            view = child.call("update_status", status="completed", summary="All done.", payload=payload)
            assert view["status"] == "completed" and view["summary"] == "All done."
            assert "get_logs" not in view["instructions"], "a child has no such tool"
            assert view["usage"]["turns"] == 1, "as soon as the end is known, not when the worker has left"
        world.gone(run_id)
        view = parent.call("check_status", runId=run_id)
        assert (view["result"], view["live"]) == ("All done.", False)
        assert 'stream="payload") has its payload' in view["instructions"]
        page = parent.call("get_logs", runId=run_id, stream="payload")
        read = page["text"]
        while not page["atEnd"]:
            page = parent.call("get_logs", runId=run_id, stream="payload", cursor=page["cursor"])
            read += page["text"]
        assert read == payload
    info = world.meta(run_id).payload
    assert info is not None and info.size == len(payload.encode())


def test_a_question_of_a_program_that_nobody_answers_ends_the_run_if_its_agent_says_so(world: World) -> None:
    world.agent("strict", askTimeoutSeconds=0.5, onAskTimeout="fail")
    world.agent("patient", askTimeoutSeconds=0.5)
    world.play(shell("sleep 3600"))
    strict, patient = world.start(agent="strict"), world.start(agent="patient")
    for run_id in (strict, patient):
        world.until(run_id, lambda meta: meta.status is Status.RUNNING)
        with child_of(world, run_id) as child:
            child.call("ask_parent", question="Which colour?", waitSeconds=0)
    code, message = world.failed(strict)
    assert code == "ask_timeout" and "q1" in message and "0.5 s" in message
    meta = world.until(patient, lambda meta: meta.messages[0].message_status is MessageStatus.EXPIRED)
    assert meta.status is Status.RUNNING
    world.stop(patient)
