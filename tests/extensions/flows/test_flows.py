"""Flows from their start to their end, with runs as they are."""

import json
import random
import signal
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from subagent_server.extensions.code_mode.agent_calls import WARM_SECONDS
from subagent_server.extensions.code_mode.flow_record import RECORD_FILE, FlowRecord
from subagent_server.extensions.code_mode.module_stub import module_stub
from subagent_server.run import processes, stderr
from subagent_server.run.errors import BadArgument, UnreadableMeta
from subagent_server.run.files import Directory
from subagent_server.run.records import FlowOptions
from subagent_server.run.secrets import Masker
from subagent_server.run.states import Status, dollars
from subagent_server.run.store import read_worktree
from subagent_server.verbs.access import USER
from subagent_server.verbs.continue_run import ContinueOrder, continue_run
from subagent_server.verbs.flow_calls import call_lines, flow_calls, phases
from subagent_server.verbs.questions import open_questions
from subagent_server.verbs.remove import Age, prune
from tests.extensions.flows.kills import campaign, repeated
from tests.extensions.flows.place import DONE, FAN, asked, body, flow, repository
from tests.helpers.mcp_servers import scripted
from tests.helpers.turns import asks, call, says, tool_results
from tests.helpers.wait import wait_for
from tests.helpers.world import BOUND, World

HUNG = {"text": "never", "fault": {"hang": True}}
"""No answer: the run is killed while it waits, and continues with another model."""


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
    run_id = started(world, many=6)
    assert output(world, run_id) == [f"done {n}" for n in range(6)]
    assert set(asked(simulator).values()) == {1}
    children = world.store.children_of(run_id)
    assert {world.meta(child).parent_run_id for child in children} == {run_id} and len(children) == 6
    world.gone(run_id)
    (end,) = world.events(run_id, "run_ended")
    assert end["withDescendants"] == world.meta(run_id).with_descendants.to_wire() != end["usage"]
    assert "anthropic" not in world.cli("export", run_id, "--otlp", "-").stdout, "a flow has no model"


def test_a_command_gives_a_flow_limits_and_no_model(world: World) -> None:
    flow(world, "def run() -> str: return 'done'")
    assert world.cli("run", "fan", "--budget", "3", "--timeout", "500").stdout == "done\n"
    (run_id,) = world.store.run_ids()
    limits = world.store.read_request(run_id).agent["limits"]
    assert isinstance(limits, dict) and (limits["budgetUsd"], limits["timeoutSeconds"]) == ("3", 500)
    for option, value in (("--model", "haiku"), ("--effort", "low"), ("--max-turns", "3")):
        refused = world.cli("run", "fan", option, value)
        assert refused.returncode == 2 and "a flow has no model" in refused.stderr


def test_a_flow_is_a_tool_with_its_own_arguments(world: World) -> None:
    flow(world)
    world.play(DONE)
    with world.serve("--tools-budget", "1") as few, world.serve() as parent:
        (tool,) = [each for each in parent.tools() if each.name == "run_fan"]
        assert tool.input_schema["properties"]["many"] == {"type": "integer", "default": 3}
        assert not {"prompt"} & tool.input_schema["properties"].keys()
        view = parent.call("run_fan", many=2, label="two", waitSeconds=40)
        assert view["output"] == ["done 0", "done 1"] and len(json.dumps(view)) < 1_000
        assert "many: \"x\" is not of type 'integer'" in parent.refused("run_fan", many="x")
        (row,) = few.call("list_agents", query="many")["agents"]
        assert '"many": {"type": "integer", "default": 3}' in row["description"]
        view = few.call("run_agent", agent="fan", arguments={"many": "1", "limit": None}, waitSeconds=40)
        assert view["output"] == ["done 0"]


def test_a_tool_takes_a_prompt_of_any_type_and_refuses_a_flow_with_a_fault(world: World) -> None:
    keys = "prompt: list[int], bag: Any, sums: dict[str, float], required: int"
    flow(
        world, f"from typing import Any\ndef run({keys}) -> list[Any]: return [*prompt, bag, sums, required]"
    )
    flow(world, "def run(untyped) -> str: ...", "wrong")
    with world.serve() as parent:
        (tool,) = [each for each in parent.tools() if each.name == "run_fan"]
        shown = tool.input_schema["properties"]
        assert (shown["bag"], shown["sums"]["additionalProperties"]) == ({}, {"type": "number"})
        given = {"prompt": [1], "bag": None, "sums": {"a": 2}, "required": 3}
        assert parent.call("run_fan", **given, waitSeconds=40)["output"] == [1, None, {"a": 2}, 3]
        assert parent.call("run_wrong", untyped=1, waitSeconds=40)["error"]["code"] == "config"


def test_an_argument_of_a_command_is_json_of_its_type_else_a_text(world: World) -> None:
    flow(world, "def run(text: str, count: float) -> list[str | int]: return [text, count]")
    assert json.loads(world.cli("run", "fan", "--arg", "text=1", "--arg", "count=2").stdout) == ["1", 2]
    wrong = {"count=x": "count: 'x' is not of type 'number'", "count=NaN": "a number that JSON does not have"}
    for word, why in wrong.items():
        told = json.loads(world.cli("run", "fan", "--arg", "text=1", "--arg", word, "--json").stderr)
        assert why in told["message"] and told["nextStep"] == "it takes text, count."
    wrong = {"count=true": "count: True is not of type 'number'", "text=2": "text has a value already"}
    for word, why in wrong.items():
        assert why in world.cli("run", "fan", "--arg", "text=1", "--arg", word).stderr


def pruned(world: World, keep: int = 0) -> dict[str, bool]:
    """Return the runs that have ended but for the newest, and whether they would be removed."""
    return {each.run_id: each.why is None for each in prune(world.store, Age(keep=keep), dry_run=True)}


def test_runs_of_a_flow_are_pruned_once_it_has_completed_or_is_pruned(world: World) -> None:
    flow(world, body("agents.worker(prompt='task a')\nreturn 1 / 0", "float"))
    world.play(DONE)
    first = started(world)
    world.failed(first)
    world.gone(first)
    (child,) = world.store.children_of(first)
    second = again(world, first)
    world.failed(second)
    world.gone(second)
    assert pruned(world, keep=1) == {child: False, first: False}
    assert pruned(world) == {second: True, child: True, first: True}
    flow(world, body("agents.worker(prompt='task a')\nreturn 1 / 1", "float"))
    dry = again(world, second, dry_run=True)
    third = again(world, dry)
    assert world.meta(third).continues_run_id == second, "a dry run stands for what it has looked at"
    assert output(world, third) == 1.0
    world.gone(dry)
    world.gone(third)
    assert pruned(world, keep=1) == dict.fromkeys((dry, second, child, first), True)
    assert world.cli("rm", child).returncode == 0
    assert world.cli("doctor", "--runs").returncode == 0, "what the removed run has cost still counts"


def test_a_flow_is_continued_by_one_run_whose_record_is_kept_with_its_own(world: World) -> None:
    flow(world, body("agents.worker(prompt='task a')\nraise SystemExit(1)"))
    simulator = world.play(DONE)
    first = started(world)
    world.failed(first)
    second = again(world, first)
    world.failed(second)
    for options in ({}, {"dry_run": True}):
        with pytest.raises(BadArgument, match=f"was continued by run {second}"):
            again(world, first, **options)
    world.gone(second)
    why = {each.run_id: each.why for each in prune(world.store, Age(keep=1), dry_run=True)}
    assert "which continues it, has not completed" in (why[first] or "")
    assert asked(simulator)["a"] == 1


@pytest.mark.parametrize(("point", "is_continued"), [("starter.reserved", False), ("starter.launched", True)])
def test_a_command_that_dies_continues_a_flow_by_one_run_or_by_none(
    world: World, point: str, is_continued: bool
) -> None:
    flow(world, body("agents.worker(prompt='task a')\nraise SystemExit(1)"))
    world.play(DONE)
    first = started(world)
    world.failed(first)
    before = set(world.store.run_ids())
    world.cli("continue", first, env={stderr.VARIABLE: point})
    begun = {each for each in set(world.store.run_ids()) - before if world.store.exists(each)}
    assert len(begun) == is_continued
    for run_id in begun:
        with pytest.raises(BadArgument, match=f"was continued by run {run_id}"):
            again(world, first)
        world.failed(run_id)
    if not is_continued:
        world.failed(again(world, first))


def test_a_program_of_code_mode_calls_agents(world: World) -> None:
    world.agent()
    world.agent("boss", codeMode=True, agents=["worker"])
    code = "from subagent import agents\nagents.worker(prompt='task one').upper()"
    first = call("execute_python_code", code=code, executionTimeout=30)
    boss = {"when": {"prompt": "Lead"}, "turns": [first, says("Led.")]}
    simulator = world.play(DONE, conversations=[boss])
    assert world.completed(world.start("Lead.", "boss")) == "Led."
    assert ["DONE ONE"] in [tool_results(request.body) for request in simulator.requests]


def test_an_agent_with_a_name_of_python_is_called_by_a_name_that_can_be_written(world: World) -> None:
    for name in ("class", "1st"):
        world.agent(name)
    lines = "return agents.class_(prompt='task a') + agents._1st(prompt='task b')"
    flow(world, body(lines).replace("['worker']", "['class', '1st']"))
    world.play(DONE)
    assert output(world, started(world)) == "done adone b"
    stub = module_stub([world.service.registry.get(name) for name in ("class", "1st")])
    compile(stub, "subagent.pyi", "exec")


def test_an_edited_prompt_asks_one_agent_and_moved_lines_and_limits_none(world: World) -> None:
    flow(world)
    simulator = world.play(DONE)
    first = started(world, many=4)
    output(world, first)
    flow(world, FAN.replace("task {n} of", "task {n if n != 3 else 'new'} of").replace("'''Ask", "\n'''Ask"))
    second = again(world, first)
    assert output(world, second) == [f"done {'new' if n == 3 else n}" for n in range(4)]
    assert sorted(states(world, second)) == ["new"] + ["recorded"] * 3
    assert asked(simulator)["new"] == 1 and asked(simulator).total() == 5
    world.agent(description="Another.", limits={"maxTurns": 7}, env={"A": "b"})
    third = again(world, second)
    output(world, third)
    assert states(world, third) == ["recorded"] * 4
    world.agent(prompt="You do it otherwise.")
    fourth = again(world, third)
    output(world, fourth)
    assert states(world, fourth) == ["new"] * 4
    with pytest.raises(BadArgument, match="does not call nobody"):
        again(world, fourth, fresh=["nobody"])


def test_a_killed_flow_repeats_nothing_that_has_ended(world: World) -> None:
    flow(world, body("a = agents.worker(prompt='task a')\nb = agents.worker(prompt='task b')\nreturn a + b"))
    simulator = world.play(DONE, conversations=[{"when": {"prompt": "task b"}, "turns": [HUNG]}])
    first = started(world)
    wait_for(lambda: len(asked(simulator)) == 2, BOUND, "the second call")
    for identity in (world.shim(first), world.worker(first)):
        processes.send_signal(identity, signal.SIGKILL)
    world.judged(first)
    simulator = world.play(DONE)
    second = again(world, first)
    assert output(world, second) == "done adone b"
    assert asked(simulator) == {"b": 1} and states(world, second)[0] == "recorded"
    assert len(world.store.children_of(second)) == 1


def test_a_cut_call_goes_on_though_the_run_that_was_to_continue_it_never_began(world: World) -> None:
    flow(world, body("return agents.worker(prompt='task a')"))
    simulator = world.play(call("bash", command="true"), HUNG)
    first = started(world)
    wait_for(lambda: len(simulator.requests) == 2, BOUND, "the second turn")
    (child,) = world.store.children_of(first)
    processes.send_signal(world.worker(child), signal.SIGKILL)
    world.failed(first)
    simulator = world.play(call("bash", command="true"), says("done"))
    world.agent(env={"A": "${NOT_SET_ANYWHERE}"})
    second = again(world, first)
    assert "config" in world.failed(second)[1]
    world.agent()
    third = again(world, second)
    assert output(world, third) == "done" and states(world, third) == ["resumed"]
    assert asked(simulator)["a"] == 1, "the turn that was cut is asked again, the one before it is not"


def test_a_call_asks_what_it_is_known_by_though_its_agent_is_edited_meanwhile(world: World) -> None:
    edit = "import pathlib; file = pathlib.Path('../agents/worker.md')\nfile.open('a').write('More.')"
    lines = "call = agents.worker.call(prompt='task a')\ncall.plan()\n{}\nreturn call()"
    simulator = world.play(call("bash", command="true"), HUNG)
    flow(world, body(lines.format("")))
    first = started(world)
    wait_for(lambda: len(simulator.requests) == 2, BOUND, "the second turn")
    (child,) = world.store.children_of(first)
    processes.send_signal(world.worker(child), signal.SIGKILL)
    world.failed(first)
    world.play(call("bash", command="true"), says("done"))
    flow(world, body(lines.format(edit)))
    second = again(world, first)
    assert output(world, second) == "done" and states(world, second) == ["resumed"]
    world.agent()
    third = again(world, second, fresh=["worker"])
    assert output(world, third) == "done" and states(world, third) == ["new"]
    for (child,) in map(world.store.children_of, (second, third)):
        assert not str(world.store.read_request(child).agent["systemPrompt"]).endswith("More.")


def test_a_run_that_cannot_be_read_ends_the_flow_and_is_not_paid_once_more(world: World) -> None:
    flow(world, body("return agents.worker(prompt='task a')"))
    simulator = world.play(DONE)
    first = last = started(world)
    assert output(world, first) == "done a"
    (child,) = world.store.children_of(first)
    for run_id, damaged in ((child, "run.meta.json"), (child, "request.json"), (first, "children")):
        path = world.paths(run_id).directory / damaged
        path.rename(world.home / damaged)
        path.symlink_to(world.home)  # nothing of a run is read through a link
        broken = again(world, last)
        code, reason = world.failed(broken)
        assert code == "storage" and str(path) in reason
        path.unlink()
        (world.home / damaged).rename(path)
        last = again(world, broken)
        assert output(world, last) == "done a" and asked(simulator)["a"] == 1


@contextmanager
def unreadable(state: Path) -> Iterator[None]:
    """Let no disk read the state of a run: a directory is in its place."""
    kept = state.rename(state.with_name(f"{state.name}.kept"))
    state.mkdir()
    try:
        yield
    finally:
        state.rmdir()
        kept.rename(state)


def test_a_flow_that_cannot_be_read_loses_neither_the_runs_before_it_nor_its_own(world: World) -> None:
    flow(world, body("raise ValueError(gather(*[agents.worker.call(prompt=f'task {n}') for n in 'ab']))"))
    simulator = world.play(DONE)
    chain = [started(world)]
    for _ in range(2):
        world.failed(chain[-1])
        chain.append(again(world, chain[-1]))
    world.failed(chain[-1])
    children, paid = world.store.children_of(chain[0]), asked(simulator)
    with unreadable(world.paths(chain[1]).meta.path):
        last = again(world, chain[-1])
        code, why = world.failed(last)
        assert code == "storage" and chain[1] in why, "calls of the first one would be paid again"
        world.gone(last)
    with unreadable(world.paths(last).meta.path), pytest.raises(UnreadableMeta):
        again(world, chain[-1])
    with unreadable(world.paths(chain[0]).meta.path):
        list(prune(world.store, Age()))
        assert {*children} <= {*world.store.run_ids()}, "they are paid"
    assert asked(simulator) == paid


def test_a_failed_call_raises_again_unless_it_shall_be_tried_anew(world: World) -> None:
    lines = (
        "for _ in range(2):\n    try:\n        agents.worker(prompt='task a', key='k')\n"
        "    except RunFailed as error:\n        code = error.code\nreturn code"
    )
    flow(world, body(lines))
    (world.agents / "worker.md").unlink()
    simulator = world.agent_saying(call("bash", command="true"), says("late"), limits={"maxTurns": 1})
    first = started(world)
    assert output(world, first) == "max_turns"
    second = again(world, first)
    assert output(world, second) == "max_turns" and asked(simulator)["a"] == 1
    third = again(world, second, retry_failed=True)
    assert output(world, third) == "max_turns" and asked(simulator)["a"] == 2
    assert states(world, third) == ["new", "recorded"], "what has failed anew is not tried once more"


def test_what_is_asked_anew_is_asked_once_and_its_result_kept(world: World) -> None:
    lines = (
        "a, b = agents.worker.call(prompt='task a', key='k'), agents.worker.call(prompt='task a', key='k')\n"
        "return ''.join(gather(a, b)) + agents.worker(prompt='task b', fresh=True)"
    )
    flow(world, body(lines))
    simulator = world.play(DONE)
    run_id = started(world)
    assert output(world, run_id) == "done adone adone b" and asked(simulator) == {"a": 1, "b": 1}
    (title, _), *_ = phases(flow_calls(world.store, run_id))
    spent = dollars(world.meta(run_id).with_descendants.cost_usd or 0)
    assert title == f"calls: 2 new, 1 recorded, {spent}", "equal keys cost once"
    for fresh, counts in (([], (1, 2)), (["worker"], (2, 3)), ([], (2, 4))):
        run_id = again(world, run_id, fresh=fresh)
        assert output(world, run_id) == "done adone adone b"
        assert asked(simulator) == dict(zip("ab", counts, strict=True))
    dry = again(world, run_id, fresh=["worker"], dry_run=True)
    assert "nothing: 1 new." in output(world, dry), "equal keys would cost once"
    world.agent(apiKeyEnv="NO_SUCH_KEY")
    dry = again(world, run_id, dry_run=True)
    assert "would be refused: NO_SUCH_KEY is not set" in output(world, dry)


def test_an_edited_flow_within_a_flow_pays_for_nothing_twice(world: World) -> None:
    flow(world, body("return agents.inner()").replace("['worker']", "['inner']"))
    lines = "a = agents.worker(prompt='task a')\n"
    simulator = world.play(DONE)
    flow(world, body(f"{lines}return a + missing"), "inner")
    run_id = started(world)
    world.failed(run_id)
    run_id = again(world, run_id, retry_failed=True)
    assert "NameError" in world.failed(run_id)[1] and states(world, run_id) == ["resumed"]
    for edited, result in (("a", "done a"), ("a + agents.worker(prompt='task b')", "done adone b")):
        flow(world, body(f"{lines}return {edited}"), "inner")
        run_id = again(world, run_id)
        assert output(world, run_id) == result and states(world, run_id) == ["resumed"]
    run_id = again(world, run_id)
    assert output(world, run_id) == "done adone b" and states(world, run_id) == ["recorded"]
    assert asked(simulator) == {"a": 1, "b": 1}


def test_a_flow_that_a_flow_called_is_continued_by_that_one_alone(world: World) -> None:
    flow(world, body("return agents.inner()").replace("['worker']", "['inner']"))
    flow(world, body("return missing"), "inner")
    first = started(world)
    world.failed(first)
    (inner,) = world.store.children_of(first)
    with pytest.raises(BadArgument, match=f"is a call of the flow {first}: continue that one"):
        again(world, inner)
    flow(world, body("return 'done'"), "inner")
    assert output(world, again(world, first)) == "done"


def test_what_was_cut_within_a_flow_within_a_flow_goes_on(world: World) -> None:
    flow(world, body("return agents.inner()").replace("['worker']", "['inner']"))
    flow(world, body("return agents.worker(prompt='task a') + agents.worker(prompt='task b')"), "inner")
    simulator = world.play(DONE, conversations=[{"when": {"prompt": "task b"}, "turns": [HUNG]}])
    first = started(world)
    wait_for(lambda: len(asked(simulator)) == 2, BOUND, "the second call of the inner flow")
    (inner,) = world.store.children_of(first)
    cut = max(world.store.children_of(inner))
    for identity in (world.shim(cut), world.worker(cut)):
        processes.send_signal(identity, signal.SIGKILL)
    world.judged(cut)
    assert world.failed(first)[0] == "agent_error", "of the inner flow"
    simulator = world.play(DONE)
    second = again(world, first)
    assert output(world, second) == "done adone b" and states(world, second) == ["resumed"]
    assert asked(simulator) == {"b": 1}


def test_flows_within_a_flow_leave_room_for_the_runs_that_they_wait_for(world: World) -> None:
    world.environment["SUBAGENT_MAX_DESCENDANTS"] = "3"
    lines = "return gather(*[agents.inner.call(key=str(n)) for n in range(4)])"
    flow(world, body(lines, "list[str]").replace("['worker']", "['inner']"))
    flow(world, body("return agents.worker(prompt='task a')"), "inner")
    world.play(DONE)
    assert output(world, started(world)) == ["done a"] * 4


def test_a_flow_is_no_script_whatever_it_does_as_one(world: World) -> None:
    text = body("return agents.worker(prompt='task a')")
    flow(world, f"{text}\nif __name__ == '__main__':\n    print(run())\n")
    simulator = world.play(DONE)
    assert output(world, started(world)) == "done a" and asked(simulator)["a"] == 1


def test_a_result_has_as_many_bytes_as_its_letters(world: World) -> None:
    flow(world, body("return '\u8a9e' * 1_000_000"))
    assert output(world, started(world)) == "\u8a9e" * 1_000_000


def test_a_call_that_cannot_be_made_is_one_of_the_exceptions(world: World) -> None:
    lines = (
        "make = agents.worker.call\n"
        "calls = [make(prompt='task a', inputs=['gone']), make(prompt='task b')]\n"
        "return [str(each) for each in gather(*calls, return_exceptions={})]"
    )
    flow(world, body(lines.format(True), "list[str]"))
    simulator = world.play(DONE)
    gone, done = output(world, started(world))
    assert gone.startswith("Input 'gone' cannot be read") and done == "done b"
    flow(world, body(lines.format(False), "list[str]"))
    assert gone in world.failed(started(world))[1] and asked(simulator) == {"b": 1}, "nothing was begun"


def test_arguments_outlive_a_continuation_that_a_fault_of_the_file_refuses(world: World) -> None:
    flow(world)
    simulator = world.play(DONE)
    first = started(world, many=1)
    output(world, first)
    flow(world, FAN.replace(" -> list[str]", ""))
    second = again(world, first)
    assert world.failed(second)[0] == "config"
    flow(world)
    assert output(world, again(world, second)) == ["done 0"] and asked(simulator).total() == 1


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
        "async def second(question, options): return options[1]\n"
        "a = agents.worker(prompt='task a', on_question=lambda question, options: options[0])\n"
        "a += agents.worker(prompt='task c', on_question=second)\n"
        "return a + agents.worker(prompt='task b') + (ask('And?') or '')"
    )
    flow(world, body(lines))
    longest = "Which?".rjust(20_000, ".")
    world.play(asks(longest, "x", "y"), says("${it}", capture={"it": "(x|y|why)"}))
    run_id = started(world)
    world.asking(run_id)
    answered = [world.meta(child).messages[0].answer_content for child in world.store.children_of(run_id)]
    assert sorted(filter(None, answered)) == ["x", "y"]
    (question,) = world.meta(run_id).pending
    assert question.question_content.startswith("worker asks: ...") and question.options == ["x", "y"]
    world.reply(run_id, "why")
    world.until(run_id, lambda meta: any(m.question_content == "And?" for m in meta.pending))
    world.reply(run_id, "z")
    assert output(world, run_id).endswith("z")
    second = again(world, run_id)
    assert output(world, second).endswith("z") and not world.meta(second).messages


def test_a_question_of_a_run_that_two_calls_share_is_asked_once(world: World) -> None:
    flow(
        world,
        body("return ''.join(gather(*[agents.worker.call(prompt='task a', key='k') for _ in range(3)]))"),
    )
    world.play(asks("Which?"), says("done"))
    run_id = started(world)
    world.asking(run_id)
    world.reply(run_id, "this")
    assert output(world, run_id) == "donedonedone" and len(world.meta(run_id).messages) == 1


def test_a_question_that_its_child_has_an_answer_to_is_closed_at_the_flow(world: World) -> None:
    flow(world, body("return agents.worker(prompt='task a')"))
    world.play(asks("Which?"), HUNG)
    run_id = started(world)
    world.asking(run_id)
    assert [question.run_id for question in open_questions(world.service)] == [run_id]
    world.reply(world.store.children_of(run_id)[0], "this")
    world.until(run_id, lambda meta: not meta.pending)
    assert world.meta(run_id).status is Status.RUNNING


def test_questions_of_children_are_open_side_by_side_and_end_the_flow_as_it_says(world: World) -> None:
    lines = "return ''.join(gather(*[agents.worker.call(prompt=f'task {n}') for n in range(3)]))"
    flow(world, body(lines, keys="LIMITS = {'askTimeoutSeconds': 3, 'onAskTimeout': 'fail'}"))
    world.play(asks("Which?"), says("done"))
    run_id = started(world)
    world.asking(run_id, 3)
    assert world.failed(run_id)[0] == "ask_timeout"


ATTEMPTS = {
    "__import__('not_here')": "No module named 'not_here'",
    "agents.nobody(prompt='x')": "agents has no agent 'nobody'; it has worker",
    "line.call('@plan', {'agent': 'outsider', 'arguments': {}})": "This run may not start outsider",
    "agents.worker(prompt='x', size=3)": "it takes a prompt, and no arguments ('size')",
    "agents.worker('x')": "agents.worker() takes its arguments by name",
    "agents.worker(prompt=' ')": "agents.worker() needs a prompt",
    "agents.worker(prompt=3)": "agents.worker() needs a prompt",
    "agents.worker.call(prompt='x', label='y' * 300).plan()": "The label has more than",
    "agents.worker.call(prompt='x' * 1_000_001).plan()": "put the material into files",
    "agents.worker(prompt='x', inputs='a')": "inputs: Input should be a valid list",
    "agents.worker(prompt={1})": "plan(): the arguments have to be values of JSON",
    "agents.worker(prompt='x' * 5_000_000)": "plan(): the arguments have more than 4,194,304 bytes",
    "agents.worker(prompt='x', cwd='/etc')": "outside",
    "agents.worker(prompt='x', inputs=['nothing'])": "'nothing'",
    "agents.worker(prompt='x', inputs=[__import__('pathlib').Path('nowhere')])": "'nowhere'",
    "agents.worker(prompt='x', inputs=[{1}])": "Object of type set is not JSON serializable",
    "gather(agents.worker.call(prompt='x'), limit=0)": "limit is how many calls may be under way",
    "gather(None)": "gather() takes calls",
    "merge(3)": "merge() takes a call that was started",
    "merge('20260101-000000-000-aaaaaa')": "20260101-000000-000-aaaaaa",
    "line.call('@start', {'call': 7})": "There is no such call.",
    "line.call('@start', {'call': '0'})": "Input should be a valid integer",
    "line.call('@start', {'call': 0, 'more': 1})": "more: Unexpected keyword argument",
    "line.call('@result', {'runId': 'x', 'asks': 1})": "asks: ",
    "line.call('@stop', {'runId': '20260101-000000-000-aaaaaa'})": "No call of this program has such a run.",
    "line.call('@aclose', {})": "There is no function 'aclose' here.",
    "gather() + gather([]) + gather(x for x in ())": "[]",
    "phase(3)": "None",
    "now().year > 2000, 0 <= random() < 1": "(True, True)",
    "[agents.worker.call(prompt=f'{n}' + 'x' * 999_990).plan() for n in range(140)]": "take 128 MiB in all",
}
"""What a flow may try, and the words of what comes of it; no run starts for any."""


def test_each_thing_that_a_flow_may_not_do_is_one_sentence(world: World) -> None:
    lines = f"""\
line, found = agents.worker._line, []
for attempt in {[*ATTEMPTS]!r}:
    try:
        found.append(str(eval(attempt)))
    except Exception as error:
        found.append(str(error))
return found"""
    flow(world, body(lines, "list[str]"))
    world.agent("outsider")
    run_id = started(world)
    found = output(world, run_id)
    for attempt, words, said in zip(ATTEMPTS, ATTEMPTS.values(), found, strict=True):
        assert words in said, f"{attempt}: {said}"
    assert not world.store.children_of(run_id)


@pytest.mark.parametrize(
    ("lines", "returns", "code", "words"),
    [
        ("return 3", "str", "invalid_output", "returned int"),
        ("import sys; sys.exit(0)", "str", "invalid_output", "returned nothing"),
        ("raise ValueError('two\\n\\nlines')", "str", "agent_error", "ValueError: two\n\nlines"),
        ("print('well'); raise SystemExit(1)", "str", "agent_error", "exit code 1"),
        ("raise RunFailed('no', 'dry_run', {})", "str", "agent_error", "RunFailed: no"),
        ("(await later())", "str", "agent_error", "SyntaxError: "),
        ("return {}", "list[int]", "invalid_output", "not of type 'array'"),
        ("import os; os._exit(3)", "str", "agent_error", "exit code 3"),
        ("return object()", "Any", "agent_error", "JSON"),
        ("x = []\nfor _ in range(400): x = [x]\nreturn x", "Any", "agent_error", "more than 190 deep"),
        (
            'import os\nfor n in range(3, 30):\n    try: os.write(n, b\'{"end": 0, "value": 1e400}\\n\')\n'
            "    except OSError: pass\nos._exit(0)",
            "float",
            "agent_error",
            "not the JSON of a call",
        ),
    ],
)
def test_a_flow_that_ends_badly_has_one_clear_end(
    world: World, lines: str, returns: str, code: str, words: str
) -> None:
    flow(world, body(lines, returns, "from typing import Any"))
    found, message = world.failed(started(world))
    assert found == code and words in message, message


SHOP = scripted(
    {"name": "look", "annotations": {"readOnlyHint": True}, "does": {"keep": "~/.cache/looks"}},
    {"name": "book", "does": {"keep": "~/.cache/books"}},
    {"name": "hangs", "does": {"hang": True}},
)


@pytest.mark.parametrize(
    "keys",
    [
        "NETWORK = False\nSANDBOX_LIMITS = {'processes': 64}",
        "SANDBOX = 'bwrap'\nDISALLOWED_TOOLS = ['execute_python_code']",
    ],
)
def test_a_flow_and_its_servers_work_in_boxes_without_its_keys(world: World, keys: str) -> None:
    server = scripted({"name": "key", "does": {"env": "ANTHROPIC_API_KEY"}})
    lines = "import os\nreturn [shop.key(), str(os.listdir(os.environ['HOME']))]"
    text = body(lines, "list[str]", f"{keys}\nMCP_SERVERS = {{'shop': {server!r}}}")
    flow(world, text.replace("agents,", "agents, shop,").replace("SANDBOX = 'none'\n", ""))
    run_id = started(world)
    assert output(world, run_id) == ["(unset)", "['runs', 'work']"]
    (began,) = world.events(run_id, "run_started")
    assert began["sandbox"].endswith("MCP servers in a box of its own: shop")


def test_a_flow_that_takes_a_misspelt_tool_away_is_refused(world: World) -> None:
    keys = f"DISALLOWED_TOOLS = ['mcp__shpo__book']\nMCP_SERVERS = {{'shop': {SHOP!r}}}"
    flow(world, body("return ''", keys=keys))
    code, message = world.failed(started(world))
    assert code == "config" and "'mcp__shpo__book' (nearest: mcp__shop)" in message


def test_tools_that_only_read_are_called_again_and_others_are_replayed(world: World) -> None:
    (world.home / ".cache").mkdir()
    lines = "return [shop.look(), shop.book(), shop.book(), shop.book(to=2**60)]"
    flow(
        world,
        body(lines, "list[str]", f"MCP_SERVERS = {{'shop': {SHOP!r}}}").replace("agents,", "agents, shop,"),
    )
    first = started(world)
    looked, *booked = output(world, first)
    second = again(world, first)
    looked_again, *replayed = output(world, second)
    assert int(looked_again) == int(looked) + 1 and replayed == booked and len({*booked}) == 3
    assert len(world.events(second, "program_call")) == 4, "each is in the journal all the same"
    record = world.paths(first).code.below("001").entry(RECORD_FILE).path
    record.unlink()
    record.mkdir()  # no disk reads it
    assert world.failed(again(world, second))[0] == "storage", "or each would be made once more"
    assert (world.home / ".cache" / "books").read_text(encoding="utf-8").count("\n") == len(booked)


def test_a_tool_call_that_was_cut_is_told_and_made_again_on_request_alone(world: World) -> None:
    lines = (
        "try:\n    return agents.worker(prompt='task a') + shop.hangs()\n"
        "except ToolError as error:\n    return str(error)"
    )
    flow(world, body(lines, keys=f"MCP_SERVERS = {{'shop': {SHOP!r}}}").replace("agents,", "agents, shop,"))
    simulator = world.play(DONE)
    first = started(world)
    record = world.paths(first).code.below("001").entry("record.jsonl")  # written before the call is made
    wait_for(lambda: record.exists() and record.read(10_000), BOUND, "the call that hangs")
    processes.send_signal(world.worker(first), signal.SIGKILL)
    world.ended(first)
    second = again(world, first)
    assert "not known what this call did" in output(world, second) and asked(simulator)["a"] == 1
    third = again(world, second)
    assert "--retry-failed" in output(world, third), "told as before"
    fourth = again(world, third, retry_failed=True)
    wait_for(lambda: world.events(fourth, "program_call"), BOUND, "the call that is made again")
    world.stop(fourth)


def test_what_is_on_record_takes_the_disk_and_not_the_memory(tmp_path: Path) -> None:
    first, second = Directory(tmp_path / "1"), Directory(tmp_path / "2")
    for directory in (first, second):
        directory.make()
    written = FlowRecord(first, Masker(), ())
    for name in ("a", "b", "a"):
        written.write(name, value=name * (1 << 20))
    with (tmp_path / "1" / RECORD_FILE).open("a", encoding="utf-8") as file:
        file.write('{"name": "cut"}')  # its newline did not get there
    tracemalloc.start()
    try:
        read = FlowRecord(second, Masker(), [first])
        assert tracemalloc.get_traced_memory()[0] < 1 << 18
    finally:
        tracemalloc.stop()
    read.write("c", value=None)
    found = {name: read.line(name) for name in ("a", "b", "c", "cut", "none")}
    assert [line and line.get("value", ...) for line in found.values()] == [
        "a" * (1 << 20),
        "b" * (1 << 20),
        None,
        ...,
        None,
    ]


def test_a_merge_and_its_base_are_replayed_whatever_has_been_committed_since(world: World) -> None:
    git = repository(world.work)
    world.agent(isolation="worktree")
    lines = "call = agents.worker.start(prompt='task a')\ncall.result()\nreturn merge(call)"
    flow(world, body(lines))
    simulator = world.play(call("bash", command="echo more >> a.txt && git commit -qam more"), says("done"))
    first = started(world)
    merged = output(world, first)
    assert "more" in (world.work / "a.txt").read_text(encoding="utf-8")
    git("commit", "-q", "--allow-empty", "-m", "later")
    second = again(world, first)
    assert output(world, second) == merged and states(world, second) == ["recorded"]
    assert asked(simulator)["a"] == 2, "two turns of one run"
    third = again(world, second, fresh=["worker"])
    output(world, third)
    (child,) = world.store.children_of(third)
    worktree = world.meta(child).worktree
    assert worktree is not None and git("log", "--format=%s", "-1", worktree.base) == "later\n", "asked anew"


def test_calls_in_calls_are_made_though_there_is_no_room_for_a_thread_each(world: World) -> None:
    lines = (
        "import resource, threading, time\n"
        "threading.stack_size(64 << 20)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
        "def count(deep):\n    time.sleep(0.1)\n"
        "    return sum(gather(*[lambda: count(deep - 1) for _ in range(6)])) if deep else 1\n"
        "return count(3)"
    )
    flow(world, body(lines, "int"))
    assert output(world, started(world)) == 6**3


@pytest.mark.parametrize("killed", ["shim", "worker", "both"])
def test_whatever_is_killed_amid_a_merge_git_writes_all_of_it(world: World, killed: str) -> None:
    git = repository(world.work)
    world.agent(isolation="worktree")
    flow(world, body("call = agents.worker.start(prompt='task a')\ncall.result()\nreturn merge(call)"))
    many = "mkdir d && seq -f d/%g 2000 | xargs touch && git add . && git commit -qm many"
    world.play(call("bash", command=many), says("done"))
    run_id = started(world)
    those = [part(run_id) for part in (world.shim, world.worker) if killed in (part.__name__, "both")]
    wait_for((world.work / "d").exists, BOUND, "the first files")
    for each in those:
        processes.send_signal(each, signal.SIGKILL)
    world.cli("show", run_id)  # who reads it ends what is left of it
    world.gone(run_id)
    assert git("status", "--porcelain") == "" and len(git("ls-files", "d").split()) == 2000
    assert list((world.work / ".git").glob("*.lock")) == []
    assert "merged" in output(world, again(world, run_id))


def test_merges_side_by_side_are_made_in_turn_and_not_signed(world: World) -> None:
    git = repository(world.work)
    for name, value in (("commit.gpgSign", "true"), ("gpg.format", "ssh"), ("user.signingKey", "/missing")):
        git("config", name, value)
    world.agent(isolation="worktree")
    lines = (
        "calls = [agents.worker.call(prompt=f'task {n} of it') for n in 'xyz']\n"
        "gather(*calls)\nreturn gather(*[lambda call=call: merge(call) for call in calls])"
    )
    flow(world, body(lines, "list[str]"))
    commits = "echo ${n} > ${n}.txt && git add . && git commit --no-gpg-sign -qm ${n}"
    world.play({**call("bash", command=commits), "capture": {"n": r"task (\w) of"}}, says("done"))
    assert len(output(world, started(world))) == 3
    assert {"x.txt", "y.txt", "z.txt"} < set(git("ls-files").split())


def test_equal_prefixes_wait_until_the_first_has_had_its_answer(world: World) -> None:
    flow(world)
    world.play(says("done ${n}", capture={"n": r"task (\w+)"}, latency=1.0))
    run_id = started(world, many=3)
    output(world, run_id)
    first, *others = sorted(world.store.children_of(run_id))
    (usage,) = world.events(first, "usage")
    answered = datetime.fromisoformat(usage["at"])
    patience = world.meta(first).created_at + timedelta(seconds=WARM_SECONDS)  # a busy machine needs it all
    assert all(world.meta(each).created_at >= min(answered, patience) for each in others)


def test_a_budget_ends_starts_and_no_call_waits_for_one_that_never_started(world: World) -> None:
    lines = (
        "calls = [agents.worker.call(prompt=f'task {n}') for n in range(5)]\n"
        "return [error.code for error in gather(*calls, return_exceptions=True)]"
    )
    flow(world, body(lines, "list[str]", "LIMITS = {'budgetUsd': '0'}"))
    world.play(DONE)
    run_id = started(world)
    assert output(world, run_id) == ["budget"] * 5 and not world.store.children_of(run_id)
    dry = again(world, run_id, dry_run=True)
    assert "started nothing: no calls." in output(world, dry), "it lists none that the start would refuse"


def test_moments_and_numbers_are_the_same_when_a_flow_is_continued(world: World) -> None:
    flow(world, body("log(now(), random(), random())", "None"))
    world.play(DONE)
    first = started(world)
    assert output(world, first) is None
    second = again(world, first)
    output(world, second)
    (said,), (said_again,) = (world.events(run_id, "text") for run_id in (first, second))
    assert said["text"] == said_again["text"]


def test_a_flow_that_logs_without_end_fills_no_disk(world: World) -> None:
    flow(world, body("for _ in range(2_150): log('x' * 4_000)\nreturn 'done'"))
    run_id = started(world)
    assert output(world, run_id) == "done"
    assert world.paths(run_id).events.stat().st_size < 9 << 20
    assert "logs so much" in world.events(run_id, "warning")[-1]["message"]


@pytest.mark.parametrize("ask", ["gather(*calls, limit=limit)", "[call.result() for call in calls]"])
def test_a_dry_run_starts_nothing_and_lists_what_would_be(world: World, ask: str) -> None:
    flow(world)
    simulator = world.play(DONE)
    first = started(world, many=2)
    output(world, first)
    more = FAN.replace("range(many)", "range(many + 2)").replace("gather(*calls, limit=limit)", ask)
    flow(world, more if "gather" in ask else more.replace("worker.call", "worker.start"))
    dry = again(world, first, dry_run=True)
    said = output(world, dry)
    assert "2 recorded" in said and "2 new" in said and "The rest is likely to cost" in said
    assert sorted(states(world, dry)) == ["new", "new", "recorded", "recorded"]
    assert asked(simulator).total() == 2 and not world.store.children_of(dry)
    then = (
        "many)]\n    phase('a\\nb')\n    try: agents.worker(prompt='task x', label='c\\nd')\n"
        "    except RunFailed: [].pop()"
    )
    flow(world, FAN.replace("many)]", then).replace("gather\n", "gather, phase, RunFailed\n"))
    dry = again(world, dry, dry_run=True)
    said = output(world, dry)
    assert "1 new" in said and said.endswith("\nThen it ended with IndexError: pop from empty list")
    shown = [*call_lines(flow_calls(world.store, dry), 9)]
    assert shown == ["a b: 1 new", "  new  worker (c d)"], "a name makes no line of its own"


def test_kills_at_random_moments_repeat_and_lose_nothing(world: World) -> None:
    campaign(world, kills=3, calls=6, dice=random.Random(39))
    assert repeated(world) == 0


def test_what_a_flow_has_left_in_its_worktree_is_read_in_a_box(world: World) -> None:
    repository(world.work)
    lines = "open('made.txt', 'w').write('by the flow')\nreturn 'made'"
    flow(world, body(lines, keys="ISOLATION = 'worktree'").replace("SANDBOX = 'none'\n", ""))
    run_id = started(world)
    assert output(world, run_id) == "made"
    world.gone(run_id)
    state = read_worktree(world.paths(run_id))
    assert state is not None and state.boxed and (state.phase, state.files) == ("kept", 1)


def test_a_dry_run_leaves_the_worktree_to_the_run_that_is_continued(world: World) -> None:
    repository(world.work)
    lines = "file = open('made.txt', 'a+')\nfile.write('x')\nfile.seek(0)\nlog(file.read())\nreturn 'done'"
    flow(world, body(lines, keys="ISOLATION = 'worktree'"))
    first = started(world)
    output(world, first)
    dry = again(world, first, dry_run=True)
    assert "no calls" in output(world, dry)
    third = again(world, dry)
    output(world, third)
    shown = [world.events(run_id, "text")[0]["text"] for run_id in (first, dry, third)]
    assert shown == ["x", "xx", "xx"], "it looks at what was left, and what it writes is its own"
