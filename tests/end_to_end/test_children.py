"""A program that a run has started speaks to the run's parent, and to nobody else."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from subagent_server.run.errors import BadArgument
from subagent_server.run.states import MessageStatus, Status
from subagent_server.verbs.end_run import update_status
from tests.helpers.mcp_client import BOUND, Parent
from tests.helpers.turns import asks, calls, says, shell, tool_results, use
from tests.helpers.wait import wait_for
from tests.helpers.world import World


def environment_of(world: World, run_id: str) -> dict[str, str]:
    """Return what a run gives to the programs it starts."""
    return {name: value for name, value in world.given_to(run_id).items() if name.startswith("SUBAGENT_")}


@contextmanager
def child_of(world: World, run_id: str) -> Iterator[Parent]:
    """Start a server as a program of the run would, and give its client."""
    with world.serve(env=environment_of(world, run_id)) as child:
        yield child


def test_a_child_asks_its_parent_and_takes_the_answer_with_and_without_waiting(world: World) -> None:
    world.agent()
    world.play(asks("Not yours."), says("Done."))
    run_id, other = world.start(), world.start()
    for each in (run_id, other):
        world.asking(each)
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
    world.agent()
    world.play(shell("sleep 3600"))
    run_id = world.start()
    wait_for(lambda: world.events(run_id, "tool_call"), BOUND, "a run at work")
    payload = "lïne\n" * 10_000
    with world.serve() as parent:
        with child_of(world, run_id) as child:
            assert child.call("update_status", status="running", summary="half way")["summary"] == "half way"
            assert parent.call("check_status", runId=run_id)["summary"] == "half way"
            view = child.call("update_status", status="completed", summary="All done.", payload=payload)
            assert view["status"] == "completed" and view["summary"] == "All done."
            assert view["usage"]["turns"] == 1, "as soon as the end is known, not when the worker has left"
        world.gone(run_id)
        view = parent.call("check_status", runId=run_id)
        assert (view["result"], view["live"]) == ("All done.", False)
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


def test_whatever_a_child_gives_too_much_of_is_refused_with_the_bound_and_changes_nothing(
    world: World,
) -> None:
    world.agent()
    simulator = world.play(
        calls(*[use("ask_parent", question=f"Number {n}?") for n in range(16)]), after="repeat_last"
    )
    run_id = world.start()
    before = world.asking(run_id, 16)
    with child_of(world, run_id) as child, world.serve("--role", "parent") as parent:
        for tool, arguments, bound in (
            ("ask_parent", {"question": "One more?"}, "16 open questions"),
            ("ask_parent", {"question": "x" * 20_001}, "20,001 of at most 20,000 characters"),
            ("ask_parent", {"question": "Which?", "options": ["x"] * 21}, "21 of at most 20 entries"),
            (
                "ask_parent",
                {"question": "Which?", "options": ["x" * 201]},
                "options.0 has 201 of at most 200",
            ),
            ("update_status", {"status": "running", "summary": "x" * 200_001}, "200,001 of at most 200,000"),
        ):
            assert bound in child.refused(tool, **arguments)
        assert "4,001 of at most 4,000" in parent.refused("stop_run", runId=run_id, reason="x" * 4_001)
        assert world.meta(run_id) == before
        for _ in range(5):
            child.call("update_status", status="running", summary="still at it")
    assert len(world.meta(run_id).transitions) == len(before.transitions) + 1
    assert len(simulator.requests) == 1
    with pytest.raises(BadArgument, match="67,108,865 of at most 67,108,864 bytes: leave it in a file"):
        update_status(world.service, run_id, "completed", payload="x" * ((64 << 20) + 1))
    assert world.meta(run_id).status is Status.WAITING


def test_a_run_is_failed_from_outside_and_its_programs_end(world: World) -> None:
    world.agent()
    world.play(shell("sleep 3600"))
    run_id = world.start()
    wait_for(lambda: world.events(run_id, "tool_call"), BOUND, "a run at work")
    with world.serve() as parent:
        view = parent.call("update_status", runId=run_id, status="failed", summary="No such table.")
        assert (view["error"]["code"], view["error"]["message"]) == ("agent_error", "No such table.")
        world.gone(run_id)
        before = world.meta(run_id)
        again = parent.call("update_status", runId=run_id, status="completed", summary="Or is there?")
        assert again["status"] == "failed" and world.meta(run_id) == before


def test_the_programs_of_a_run_know_which_run_they_belong_to(world: World) -> None:
    world.agent()
    simulator = world.play(
        shell('echo $SUBAGENT_RUN_ID $PWD; [ -n "$SUBAGENT_RUN_TOKEN" ] && echo token'), says("Done.")
    )
    run_id = world.start()
    world.completed(run_id)
    assert tool_results(simulator.requests[1].body) == [f"{run_id} {world.work}\ntoken"]


def test_a_token_that_is_not_that_of_the_run_opens_nothing_and_is_refused_in_one_line(world: World) -> None:
    world.agent(tools="Bash(git diff:*)")
    run_id = world.start()
    for environment, words in (
        ({"SUBAGENT_RUN_ID": run_id, "SUBAGENT_RUN_TOKEN": "wrong"}, "does not open run"),
        ({"SUBAGENT_RUN_ID": run_id}, "does not open run"),
        ({"SUBAGENT_RUN_TOKEN": "alone"}, "SUBAGENT_RUN_ID"),
        ({"SUBAGENT_RUN_ID": "../..", "SUBAGENT_RUN_TOKEN": "x"}, "SUBAGENT_RUN_ID"),
    ):
        done = world.cli("serve", env=environment)
        assert done.returncode == 2 and done.stdout == "", done
        assert words in done.stderr and done.stderr.count("\n") == 1
