"""How a limit or a fault ends a run, and that its work is kept (SPEC sections 3 and 7)."""

import socket
from decimal import Decimal
from pathlib import Path

from subagent_server.run.processes import now
from subagent_server.run.states import Status, dollars
from tests.helpers.turns import asks, calls, says, tool_results, use
from tests.helpers.wait import wait_for
from tests.helpers.world import BOUND, World


def test_working_time_ends_with_timeout_and_the_partial_text_is_kept(world: World) -> None:
    world.agent(timeoutSeconds=1)
    world.play(calls(use("bash", command="sleep 3600"), text="I wait for the build."))
    run_id = world.start()
    code, message = world.failed(run_id)
    assert code == "timeout" and "1 s" in message
    assert world.result(run_id).text == "I wait for the build."
    world.gone(run_id)


def test_a_pattern_that_explodes_over_a_final_answer_holds_up_neither_the_run_nor_its_end(
    world: World,
) -> None:
    mail = {"type": "string", "pattern": "^([a-z0-9]+)+@x$"}
    schema = {"type": "object", "properties": {"mail": mail}, "required": ["mail"]}
    world.agent(outputSchema=schema, timeoutSeconds=2)
    world.play(calls(use("final_answer", mail="a" * 44 + "!"), text="I have it."))
    run_id = world.start()
    code, message = world.failed(run_id)
    assert code == "timeout" and "2 s" in message
    assert world.result(run_id).text == "I have it."
    world.gone(run_id)


def test_time_spent_waiting_for_the_parent_does_not_count_as_working_time(world: World) -> None:
    world.agent(timeoutSeconds=4)
    world.play(asks("Go on?"), says("Done."))
    run_id = world.start()
    (question,) = world.asking(run_id).pending
    waited = lambda: (now() - question.question_timestamp).total_seconds() > 5  # noqa: E731
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
    world.agent(timeoutSeconds=2)
    words = "".join(f"word{n} " for n in range(40_000))
    world.play(calls(use("glob", pattern="*"), text="I look."), says(words, chunk_size=8, chunk_delay=0.05))
    run_id = world.start()
    code, _ = world.failed(run_id)
    assert code == "timeout"
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


PRINTED = 200 << 20


def test_much_output_of_a_program_becomes_neither_memory_nor_transcript(world: World) -> None:
    """200 MB stand for any size: memory does not grow with it."""
    world.agent()
    command = f"head -c {PRINTED} /dev/zero | tr '\\0' x"
    simulator = world.play(calls(use("bash", command=command)), asks("Enough?"), says("Done."))
    run_id = world.start()
    world.asking(run_id)
    status = Path(f"/proc/{world.worker(run_id).pid}/status").read_text(encoding="ascii")
    peak = next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM"))
    assert peak < PRINTED * 3 // 4, f"{peak >> 20} MB for {PRINTED >> 20} MB of output"
    world.reply(run_id, "yes")
    assert world.completed(run_id) == "Done."
    (result,) = tool_results(simulator.requests[1].body)
    assert len(result) < 40_000 and "209,715,200 bytes are in" in result
    (kept,) = world.paths(run_id).outputs.path.iterdir()
    assert str(kept) in result and kept.stat().st_size == 64 << 20, (
        "whole up to the limit that the result names"
    )
    small = (world.paths(run_id).transcript, world.paths(run_id).events, world.paths(run_id).log)
    assert sum(path.stat().st_size for path in small) < 1 << 20


def test_an_api_out_of_reach_is_tried_again_with_warnings_until_the_run_is_stopped(world: World) -> None:
    world.agent()
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        world.environment["ANTHROPIC_BASE_URL"] = f"http://127.0.0.1:{closed.getsockname()[1]}"
        run_id = world.start()
        wait_for(lambda: len(world.events(run_id, "warning")) >= 2, BOUND, "two attempts")
        assert "the connection to the API failed" in world.events(run_id, "warning")[0]["message"]
        assert world.meta(run_id).status is Status.RUNNING
        assert world.stop(run_id, "no network").meta.status is Status.STOPPED
        world.gone(run_id)


def test_a_refusal_of_the_api_is_reported_with_a_hint(world: World) -> None:
    world.agent()
    world.play(says("Never said.", fault={"status": 401, "message": "invalid x-api-key"}))
    run_id = world.start()
    code, message = world.failed(run_id)
    assert code == "model_error" and "401" in message and "invalid x-api-key" in message
    error = world.meta(run_id).error
    assert error is not None and "ANTHROPIC_API_KEY" in (error.hint or "")


def test_a_working_directory_that_has_gone_is_named(world: World) -> None:
    world.agent(maxConcurrent=1)
    world.play(says("Done.", latency=0.5))
    place = world.home / "place"
    place.mkdir()
    first, second = world.start(), world.start(cwd=str(place))
    place.rmdir()
    world.completed(first)
    code, message = world.failed(second)
    assert code == "config" and str(place) in message
