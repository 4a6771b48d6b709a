"""How a limit or a fault ends a run, and that its work is kept (SPEC sections 3 and 7)."""

from decimal import Decimal

from subagent_server.run.states import dollars
from subagent_server.worker.worker_run import WorkClock
from tests.helpers.turns import asks, calls, says, shell, tool_results, use
from tests.helpers.world import World


def test_a_timeout_names_the_fault_for_which_the_model_did_not_answer(world: World) -> None:
    world.agent(timeoutSeconds=3)
    world.environment["ANTHROPIC_BASE_URL"] = "http://127.0.0.1:9"
    code, message = world.failed(world.start())
    assert code == "timeout" and "3 s of working time." in message
    assert "had failed before: the connection to the API failed" in message


def test_many_waits_inside_one_stretch_are_no_work() -> None:
    moment = 0.0
    clock = WorkClock(lambda: None, lambda: None, clock=lambda: moment)
    with clock.working():
        moment = 1.0
        with clock.waiting(), clock.waiting(), clock.waiting():  # for runs that a program has started
            moment = 100.0
            assert clock.elapsed == 1.0
        assert clock.running
        moment = 101.0
    assert clock.elapsed == 2.0


def test_a_question_that_nobody_answers_expires_and_the_agent_goes_on_or_fails_as_its_file_says(
    world: World,
) -> None:
    world.agent("patient", askTimeoutSeconds=0.5)
    world.agent("strict", askTimeoutSeconds=0.5, onAskTimeout="fail")
    simulator = world.play(asks("Which colour?"), says("Without an answer, then."))
    patient, strict = world.start(agent="patient"), world.start(agent="strict")
    assert world.completed(patient) == "Without an answer, then."
    (result,) = tool_results(
        max((r.body for r in simulator.requests), key=lambda body: len(body["messages"]))
    )
    assert result.startswith("No answer came in time.")
    assert [e["messageId"] for e in world.events(patient, "no_reply")] == ["q1"]

    code, message = world.failed(strict)
    assert code == "ask_timeout" and "q1" in message and "0.5 s" in message
    for run_id in (patient, strict):
        (question,) = world.meta(run_id).messages
        assert question.message_status.value == "expired"


def test_a_reply_cut_off_by_the_timeout_keeps_its_text_so_far(world: World) -> None:
    world.agent(timeoutSeconds=4)
    words = "".join(f"word{n} " for n in range(40_000))
    world.play(calls(use("glob", pattern="*"), text="I look."), says(words, chunk_size=8, chunk_delay=0.05))
    run_id = world.start()
    code, message = world.failed(run_id)
    assert code == "timeout" and "used all of its 4 s of working time." in message
    first, second = world.result(run_id).text.split("\n\n")
    assert first == "I look." and second.startswith("word0 word1") and words.startswith(second)
    usage = world.meta(run_id).usage
    assert usage.input_tokens is not None and usage.input_tokens > 0 and usage.turns == 1


MILLION = {"input_tokens": 1_000_000, "output_tokens": 0}


def test_a_budget_ends_the_run_and_every_door_shows_its_cost(world: World) -> None:
    world.agent(model="claude-haiku-4-5", budgetUsd="1.50")
    turn = calls(use("glob", pattern="*"), text="Still looking.", usage=MILLION)
    simulator = world.play(turn, after="repeat_last")
    run_id = world.start()
    code, message = world.failed(run_id)
    assert code == "budget" and "used $2" in message and message.endswith("of its budget of $1.5.")
    assert world.result(run_id).text == "Still looking." and len(simulator.requests) == 2
    cost = world.meta(run_id).usage.cost_usd
    first, second = (Decimal(event["costUsd"]) for event in world.events(run_id, "usage"))
    assert 1 <= first < second == cost
    assert f"{cost}" in world.cli("show", run_id, "--json").stdout
    assert dollars(cost) in world.cli("show", run_id).stdout
    assert dollars(cost) in world.paths(run_id).log.path.read_text(encoding="utf-8")


def test_a_working_directory_that_has_gone_is_named(world: World) -> None:
    world.agent_saying(shell("until [ -e gone ]; do sleep 0.05; done"), says("Done."), maxConcurrent=1)
    place = world.home / "place"
    place.mkdir()
    first, second = world.start(), world.start(cwd=str(place))
    place.rmdir()
    (world.work / "gone").touch()
    world.completed(first)
    code, message = world.failed(second)
    assert code == "config" and str(place) in message
