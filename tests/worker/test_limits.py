"""What ends a run that does not end by itself, and what is kept of its work (SPEC sections 3 and 7)."""

from subagent_server.domain.states import Status
from subagent_server.host.clock import now
from tests.helpers.turns import asks, calls, says, tool_results, use
from tests.helpers.wait import wait_for
from tests.helpers.world import BOUND, World


def test_endless_tool_calls_end_with_max_turns_and_the_partial_text_is_kept(world: World) -> None:
    world.agent(maxTurns=3)
    world.play(calls(use("glob", pattern="*"), text="Still looking."), after="repeat_last")
    run_id = world.start()
    code, message = world.failed(run_id)
    assert code == "max_turns" and "3 turns" in message
    result = world.result(run_id)
    assert result.text == "Still looking." and result.outcome is Status.FAILED
    assert result.error is not None and result.error.code == "max_turns"
    assert world.meta(run_id).usage.turns == 3 and world.meta(run_id).usage.tool_calls == 3


def test_working_time_ends_with_timeout_and_the_partial_text_is_kept(world: World) -> None:
    world.agent(timeoutSeconds=1)
    world.play(calls(use("bash", command="sleep 3600"), text="I wait for the build."))
    run_id = world.start()
    code, message = world.failed(run_id)
    assert code == "timeout" and "1 s" in message
    assert world.result(run_id).text == "I wait for the build."
    world.gone(run_id)


def test_time_spent_waiting_for_the_parent_is_no_working_time(world: World) -> None:
    world.agent(timeoutSeconds=1)
    world.play(asks("Go on?"), says("Done."))
    run_id = world.start()
    (question,) = world.asking(run_id).pending
    waited = lambda: (now() - question.question_timestamp).total_seconds() > 2  # noqa: E731
    wait_for(waited, BOUND, "a parent that takes its time")
    world.reply(run_id, "yes")
    assert world.completed(run_id) == "Done."


def test_a_question_that_nobody_answers_expires_and_the_agent_goes_on_or_fails_as_its_file_says(
    world: World,
) -> None:
    world.agent("patient", askTimeoutSeconds=0.5)
    world.agent("strict", askTimeoutSeconds=0.5, onAskTimeout="fail")
    simulator = world.play(asks("Which colour?"), says("Without an answer, then."))
    patient, strict = world.start(agent="patient"), world.start(agent="strict")
    assert world.completed(patient) == "Without an answer, then."
    (told,) = tool_results(max((r.body for r in simulator.requests), key=lambda body: len(body["messages"])))
    assert told.startswith("No answer came in time.")
    assert [e["messageId"] for e in world.events(patient, "no_reply")] == ["q1"]

    code, message = world.failed(strict)
    assert code == "ask_timeout" and "q1" in message and "0.5 s" in message
    for run_id in (patient, strict):
        (question,) = world.meta(run_id).messages
        assert question.message_status.value == "expired"
