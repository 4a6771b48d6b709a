"""Questions of a run: the order of its writes, and the answers that the model gets."""

import asyncio
import signal
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest

from subagent_server.extensions.simulator import Simulator
from subagent_server.run import processes
from subagent_server.run.errors import UnknownRun
from subagent_server.run.locks import exclusive
from subagent_server.run.processes import now
from subagent_server.run.states import Event, MessageStatus, Status
from subagent_server.run.store import RunStore
from subagent_server.run.transitions import ReplyGiven
from subagent_server.run.wake import SLOW_POLL_SECONDS
from subagent_server.worker.worker_run import WorkerRun
from tests.helpers.runs import start_run
from tests.helpers.turns import asks, calls, says, tool_results, use
from tests.helpers.world import BOUND, World


def test_two_questions_of_one_turn_are_answered_in_the_other_order(world: World) -> None:
    world.agent()
    turn = calls(
        use("ask_parent", question="Which colour?"),
        use("glob", pattern="*"),
        use("ask_parent", question="Which size?", options=["S", "L"]),
    )
    simulator = world.play(turn, says("Done."))
    run_id = world.start()
    meta = world.asking(run_id, 2)
    size = meta.pending[1].message_id
    world.reply(run_id, "L", size)
    done = (size, MessageStatus.ACKNOWLEDGED)
    meta = world.until(
        run_id, lambda meta: done in [(each.message_id, each.message_status) for each in meta.messages]
    )
    assert meta.status is Status.WAITING and meta.pending_questions == 1
    world.reply(run_id, "blue")
    assert world.completed(run_id) == "Done."
    assert tool_results(simulator.requests[1].body)[0::2] == ["blue", "L"], "each call has its own answer"

    steps = [(step.event.value, step.to_status.value) for step in world.meta(run_id).transitions]
    assert steps == [
        ("worker_started", "running"),
        ("question_asked", "waiting_parent_reply"),
        ("question_asked", "waiting_parent_reply"),
        ("reply_given", "parent_replied"),
        ("reply_acknowledged", "waiting_parent_reply"),
        ("reply_given", "parent_replied"),
        ("reply_acknowledged", "running"),
        ("finished", "completed"),
    ]


def test_the_journal_tells_a_run_in_its_order_and_the_log_reads_well(world: World) -> None:
    prompt = "  You paint ${HOME} {braces} %s, ünïcode too."
    world.agent(prompt=prompt, model="haiku", maxTokens=777)
    simulator = world.play(asks("Which colour?", "red"), says("Painted.", thinking="Hm."))
    run_id = world.start_asking("Paint it.", label="paint")
    world.reply(run_id, "blue")
    world.completed_and_gone(run_id)
    kinds = [event["type"] for event in world.events(run_id)]
    assert kinds == [
        *("run_started", "turn", "usage", "tool_call", "question", "reply", "tool_result"),
        *("turn", "usage", "thought", "text", "run_ended"),
    ]
    started = world.events(run_id, "run_started")[0]
    assert started["model"].startswith("claude-haiku-") and "unsandboxed" in started["sandbox"]
    assert world.events(run_id, "reply")[0]["answeredBy"] == "parent"
    request = simulator.requests[0].body
    literal, preamble = request["system"]
    assert literal["text"] == prompt and run_id in preamble["text"]
    assert request["model"] == started["model"] and request["max_tokens"] == 777
    log = world.paths(run_id).log.path.read_text(encoding="utf-8")
    for words in (
        "Paint it.",
        "? q1: Which colour?",
        "! q1 answered by the parent: blue",
        "Painted.",
        "✔ completed",
    ):
        assert words in log
    assert "unsandboxed" in log


def test_an_answer_wakes_the_agent_long_before_it_would_look_by_itself(world: World) -> None:
    world.agent_saying(*(asks(f"Question {n}?") for n in range(1, 8)), says("Done."))
    run_id = world.start()
    for number in range(1, 8):
        world.asking(run_id)
        world.reply(run_id, f"Answer {number}.", f"q{number}")
    world.completed(run_id)
    steps = world.meta(run_id).transitions
    delays = [
        (after.at - before.at).total_seconds()
        for before, after in pairwise(steps)
        if (before.event, after.event) == (Event.REPLY_GIVEN, Event.REPLY_ACKNOWLEDGED)
    ]
    assert len(delays) == 7 and median(delays) < SLOW_POLL_SECONDS / 4, delays


def test_answers_of_the_last_turn_are_acknowledged_before_the_run_ends(world: World) -> None:
    """However it ends: with the result of that turn, or because the turn was the last that it had."""
    schema = {"type": "object", "properties": {"colour": {"type": "string"}}, "required": ["colour"]}
    world.agent("painter", outputSchema=schema)
    world.agent("novice", maxTurns=1)
    questions = [use("ask_parent", question=f"Which, {number}?") for number in range(8)]
    world.play(calls(*questions, use("final_answer", colour="blue")))
    endings = {"painter": Event.FINISHED, "novice": Event.RUN_FAILED}
    for agent, ending in endings.items():
        run_id = world.start(agent=agent)
        meta = world.asking(run_id, 8)
        asked = [(m.message_id, m.question_content) for m in meta.messages]
        assert asked == [(f"q{n + 1}", f"Which, {n}?") for n in range(8)], "in the order of their calls"
        with exclusive(world.paths(run_id).meta_lock):  # which it would keep if it were stopped with it
            processes.send_signal(
                world.worker(run_id), signal.SIGSTOP
            )  # so that it reads all answers at once
        for message in meta.messages:
            world.reply(run_id, "blue", message.message_id)
        processes.send_signal(world.worker(run_id), signal.SIGCONT)
        meta = world.ended(run_id)
        happened = [step.event for step in meta.transitions if step.event is not Event.USAGE_SETTLED]
        assert happened[-9:] == [*[Event.REPLY_ACKNOWLEDGED] * 8, ending], agent
        assert {m.message_status for m in meta.messages} == {MessageStatus.ACKNOWLEDGED}, agent


def test_no_answer_waits_for_its_acknowledgement_and_the_end_waits_for_all(tmp_path: Path) -> None:
    async def scene() -> None:
        with run.listening():
            for number in ("q1", "q2"):
                asking = asyncio.create_task(run.ask("Which?", None))
                while not run.meta().pending:
                    await run.sleep(BOUND)
                store.update(run.run_id, ReplyGiven(message_id=number, answer="blue"), now())
                with exclusive(run.paths.meta_lock):
                    assert (await asking).answer == "blue"
                    assert run.meta().messages[-1].message_status is MessageStatus.REPLIED
                    if number == "q2":
                        run.paths.meta.unlink()
                if number == "q1":
                    await run.acknowledged()
                    assert run.meta().messages[0].message_status is MessageStatus.ACKNOWLEDGED
            with pytest.raises(UnknownRun):
                await run.acknowledged()
            await run.acknowledged()

    store = RunStore(tmp_path / "runs")
    run = WorkerRun(store.paths.run(start_run(store).run_id).directory, [])
    assert run.begin()
    asyncio.run(scene())


def test_an_answer_that_an_api_out_of_reach_never_gets_is_acknowledged(world: World) -> None:
    world.agent()
    with Simulator({"turns": [asks("Which colour?")]}) as simulator:
        world.environment["ANTHROPIC_BASE_URL"] = simulator.base_url
        run_id = world.start_asking()
    world.reply(run_id, "blue")
    meta = world.until(run_id, lambda meta: meta.messages[0].message_status is MessageStatus.ACKNOWLEDGED)
    assert meta.status is Status.RUNNING
    assert world.stop(run_id).meta.status is Status.STOPPED
