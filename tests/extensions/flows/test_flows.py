"""Flows from their start to their end, with runs as they are."""

import random
import signal
from typing import Any

import pytest

from subagent_server.run import processes
from subagent_server.run.records import FlowOptions
from subagent_server.verbs.access import USER
from subagent_server.verbs.continue_run import ContinueOrder, continue_run
from tests.extensions.flows.kills import campaign, repeated
from tests.extensions.flows.place import DONE, FAN, asked, body, flow
from tests.helpers.turns import asks, call, says, tool_results
from tests.helpers.wait import wait_for
from tests.helpers.world import BOUND, World


def started(world: World, name: str = "fan", **arguments: Any) -> str:
    """Start a flow and return its run."""
    return world.start("", name, arguments=arguments)


def again(world: World, run_id: str, **options: Any) -> str:
    """Continue a flow and return the new run."""
    order = ContinueOrder(run_id, flow=FlowOptions(**options) if options else None)
    return continue_run(world.service, order, USER).run_id


def states(world: World, run_id: str) -> list[str]:
    """Return what became of each call of a flow."""
    return [event["state"] for event in world.events(run_id, "agent_call")]


def output(world: World, run_id: str) -> Any:
    """Return the result of a flow that completes."""
    meta = world.ended(run_id)
    assert meta.error is None, meta.error
    result = world.result(run_id)
    return result.output if result.has_output else result.text


def test_a_flow_starts_runs_and_returns_their_results_in_order(world: World) -> None:
    flow(world)
    simulator = world.play(DONE)
    run_id = started(world, many=12)
    assert output(world, run_id) == [f"done {n}" for n in range(12)]
    assert set(asked(simulator).values()) == {1}
    children = world.store.children_of(run_id)
    assert {world.meta(child).parent_run_id for child in children} == {run_id} and len(children) == 12


def test_a_program_of_code_mode_calls_agents(world: World) -> None:
    world.agent()
    world.agent("boss", codeMode=True, agents=["worker"])
    code = "from subagent import agents\nagents.worker(prompt='task one').upper()"
    first = call("execute_python_code", code=code, executionTimeout=30)
    boss = {"when": {"prompt": "Lead"}, "turns": [first, says("Led.")]}
    simulator = world.play(DONE, conversations=[boss])
    assert world.completed(world.start("Lead.", "boss")) == "Led."
    assert ["DONE ONE"] in [tool_results(request.body) for request in simulator.requests]


def test_an_edited_prompt_asks_one_agent_and_moved_lines_none(world: World) -> None:
    flow(world)
    simulator = world.play(DONE)
    first = started(world, many=6)
    output(world, first)
    flow(world, FAN.replace("task {n} of", "task {n if n != 3 else 'new'} of").replace("'''Ask", "\n'''Ask"))
    second = again(world, first)
    assert output(world, second) == [f"done {'new' if n == 3 else n}" for n in range(6)]
    assert sorted(states(world, second)) == ["new"] + ["recorded"] * 5
    assert asked(simulator)["new"] == 1 and asked(simulator).total() == 7


def test_a_killed_flow_repeats_nothing_that_has_ended(world: World) -> None:
    flow(world, body("a = agents.worker(prompt='task a')\nb = agents.worker(prompt='task b')\nreturn a + b"))
    slow = {"when": {"prompt": "task b"}, "turns": [says("done b", latency=1.5)]}
    simulator = world.play(DONE, conversations=[slow])
    first = started(world)
    wait_for(lambda: len(asked(simulator)) == 2, BOUND, "the second call")
    for identity in (world.shim(first), world.worker(first)):
        processes.send_signal(identity, signal.SIGKILL)
    wait_for(lambda: world.look(first).meta.status.is_terminal, BOUND, "the end of a killed flow")
    second = again(world, first)
    assert output(world, second) == "done adone b"
    assert asked(simulator)["a"] == 1 and states(world, second)[0] == "recorded"
    assert len(world.store.children_of(second)) == 1


def test_a_failed_call_raises_again_unless_it_shall_be_tried_anew(world: World) -> None:
    lines = (
        "try:\n    return agents.worker(prompt='task a')\nexcept RunFailed as error:\n    return error.code"
    )
    flow(world, body(lines))
    (world.agents / "worker.md").unlink()
    world.agent(limits={"maxTurns": 1})
    simulator = world.play(call("bash", command="true"), says("late"))
    first = started(world)
    assert output(world, first) == "max_turns"
    second = again(world, first)
    assert output(world, second) == "max_turns" and asked(simulator)["a"] == 1
    third = again(world, second, retry_failed=True)
    assert output(world, third) == "max_turns" and asked(simulator)["a"] == 2
    assert states(world, third) == ["new"]


def test_after_a_failure_no_call_is_begun_and_running_ones_end(world: World) -> None:
    lines = "return ''.join(gather(*[agents.worker.call(prompt=f'task {n}') for n in range(6)], limit=2))"
    flow(world, body(lines))
    fails = {"when": {"prompt": "task 0"}, "turns": [{"fault": {"status": 400}, "text": "never"}]}
    slow = {"when": {"prompt": "task 1"}, "turns": [says("done", latency=1.0)]}
    world.play(DONE, conversations=[fails, slow])
    run_id = started(world)
    code, message = world.failed(run_id)
    assert code == "agent_error" and "model_error" in message
    children = [world.meta(child) for child in world.store.children_of(run_id)]
    assert sorted(child.status.value for child in children) == ["completed", "failed"]


def test_questions_of_children_go_to_the_program_or_to_the_parent(world: World) -> None:
    lines = (
        "a = agents.worker(prompt='task a', on_question=lambda question, options: options[0])\n"
        "return a + agents.worker(prompt='task b') + (ask('And?') or '')"
    )
    flow(world, body(lines))
    world.play(asks("Which?", "x", "y"), says("${it}", capture={"it": "(x|why)"}))
    run_id = started(world)
    world.asking(run_id)
    (question,) = world.meta(run_id).pending
    assert question.question_content == "worker asks: Which?" and question.options == ["x", "y"]
    world.reply(run_id, "why")
    world.until(run_id, lambda meta: any(m.question_content == "And?" for m in meta.pending))
    world.reply(run_id, "z")
    assert output(world, run_id).endswith("z")
    second = again(world, run_id)
    assert output(world, second).endswith("z") and not world.meta(second).messages


@pytest.mark.parametrize(
    ("lines", "code", "words"),
    [
        ("import not_here", "agent_error", "not_here"),
        ("return 3", "invalid_output", "returned int"),
        ("return agents.nobody(prompt='x')", "agent_error", "nobody"),
        ("import os; os._exit(3)", "agent_error", "exit code 3"),
        ("raise SystemExit(1)", "agent_error", "exit code 1"),
        ("return object()", "agent_error", "JSON"),
        ("return agents.worker(prompt='x', size=3)", "agent_error", "has no argument 'size'"),
        ("return agents.worker(prompt='x', cwd='/etc')", "agent_error", "outside"),
        ("return agents.worker(prompt='x', inputs=['nothing'])", "agent_error", "nothing"),
    ],
)
def test_a_flow_that_cannot_go_on_says_why(world: World, lines: str, code: str, words: str) -> None:
    flow(world, body(lines))
    world.play(DONE)
    run_id = started(world)
    found, message = world.failed(run_id)
    assert found == code and words in message, message
    assert not world.store.children_of(run_id)


def test_moments_and_numbers_are_the_same_when_a_flow_is_continued(world: World) -> None:
    flow(world, body("return str((now(), random(), random()))"))
    world.play(DONE)
    first = started(world)
    said = output(world, first)
    assert output(world, again(world, first)) == said


def test_a_dry_run_starts_nothing_and_lists_what_would_be(world: World) -> None:
    flow(world)
    simulator = world.play(DONE)
    first = started(world, many=2)
    output(world, first)
    flow(world, FAN.replace("range(many)", "range(many + 2)"))
    dry = again(world, first, dry_run=True)
    output(world, dry) if world.ended(dry).error is None else None
    assert sorted(states(world, dry)) == ["new", "new", "recorded", "recorded"]
    assert asked(simulator).total() == 2 and not world.store.children_of(dry)


def test_kills_at_random_moments_repeat_and_lose_nothing(world: World) -> None:
    campaign(world, kills=3, calls=6, dice=random.Random(39))
    assert repeated(world) == 0
