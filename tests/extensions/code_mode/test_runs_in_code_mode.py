"""Runs whose model runs programs: questions, stops, kills and continuations, and their configuration."""

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from subagent_server.run import processes
from subagent_server.run.processes import now
from subagent_server.run.states import Status
from subagent_server.verbs.access import USER
from subagent_server.verbs.continue_run import ContinueOrder, continue_run
from tests.extensions.code_mode.shop import NUMBER, in_code_mode, program
from tests.helpers.files import write_program
from tests.helpers.mcp_servers import scripted
from tests.helpers.turns import call, says, tool_results
from tests.helpers.wait import wait_for
from tests.helpers.world import BOUND, World, kill

WAITS = (
    "import os, pathlib, time\nshop.price(n=1)\ntry:\n    shop.bad()\nexcept ToolError:\n    pass\n"
    "pathlib.Path('pid').write_text(str(os.getpid()))\nshop.hangs()"
)

ANOTHER_PYTHON = f"""\
#!/bin/sh
[ "$2" = -c ] && exec {sys.executable} "$@"  # asked for its version
shift 5  # -I -u -X utf8 -c
as_another="import sys; sys.version = 'of another make'; exec(sys.argv.pop(1))"
exec {sys.executable} -I -u -X utf8 -c "$as_another" "$@"
"""
"""An interpreter that says of itself that it is not that of the worker."""
PROGRAM_WORDS = b"<code mode>"
"""A part of the command line of each program, and of the bubblewrap around it."""


def offered(body: Any) -> dict[str, Any]:
    """Return the tools in a request, by their names."""
    return {tool["name"]: tool for tool in body["tools"]}


def results_anywhere(body: Any) -> list[str]:
    """Return the texts of all tool results in the messages of a request."""
    contents = [message["content"] for message in body["messages"] if isinstance(message["content"], list)]
    blocks = [block for content in contents for block in content if block["type"] == "tool_result"]
    return ["".join(part.get("text", "") for part in block["content"]) for block in blocks]


def test_a_program_asks_the_parent_and_its_clock_stands_still_meanwhile(world: World) -> None:
    in_code_mode(world, limits={"timeoutSeconds": 20})
    code = "import time\nask_parent(question='Which?', options=['a', 'b']).upper() + str(shop.price(n=2))"
    simulator = world.play(program(code, 2), says("Done."))
    run_id = world.start_asking()
    (message,) = world.meta(run_id).messages
    assert (message.question_content, message.options) == ("Which?", ["a", "b"])
    before = message.question_timestamp.timestamp()
    wait_for(lambda: _seconds_since(before) > 3, BOUND, "more time than the program has")
    world.reply(run_id, "b")
    assert world.completed(run_id) == "Done."
    assert tool_results(simulator.requests[1].body) == ['B{"n": 2}']


def test_a_continued_run_knows_the_runs_of_a_killed_program_and_pays_none_again(world: World) -> None:
    world.agent("helper")
    world.agent("worker", codeMode={"enabled": True}, agents=["helper"])
    code = "from subagent import agents, ask\n(agents.helper(prompt='Help.'), ask('Which?'))"
    once = {"when": {"prompt": "Help"}, "turns": [says("Helped.")]}
    turns = [program(code, 60), program(code, 60), says("Done.")]
    simulator = world.play(*turns, conversations=[once])
    first = world.start_asking(agent="worker")
    (child,) = world.store.children_of(first)
    for process in (world.shim(first), world.worker(first)):
        kill(process)
    second = continue_run(world.service, ContinueOrder(first), USER).run_id
    world.asking(second)
    world.reply(second, "b")
    assert world.completed(second) == "Done."
    cut, again = results_anywhere(simulator.requests[-1].body)
    assert f"It had called agents, in runs {child}" in cut and again == "('Helped.', 'b')"
    assert len(simulator.requests) == 4, "the agent was asked once"
    described = offered(simulator.requests[-1].body)["execute_python_code"]["description"]
    assert "from subagent import agents" in described


def test_a_stop_ends_the_program_of_a_run_at_once(world: World) -> None:
    in_code_mode(world)
    world.play(program(WAITS, 300), says("Never said."))
    run_id = world.start()
    wait_for(lambda: len(world.events(run_id, "program_call")) == 3, BOUND, "the last call of the program")
    identity = processes.identify(int((world.work / "pid").read_text(encoding="ascii")))
    assert world.stop(run_id, "enough").meta.status is Status.STOPPED
    assert identity is not None
    wait_for(lambda: not processes.is_alive(identity), BOUND, "the end of the program")
    world.gone(run_id)


@pytest.mark.parametrize(
    ("killed", "sandbox"),
    [("worker", "none"), ("program", "none"), ("program", "bwrap"), ("program and worker", "bwrap")],
)
def test_a_kill_is_told_to_the_model_with_each_call_and_none_is_repeated(
    world: World, killed: str, sandbox: str
) -> None:
    in_code_mode(world, sandbox=sandbox)
    simulator = world.play(program(WAITS, 300), says("Done."), says("Done."))
    run_id = world.start()
    wait_for(lambda: len(world.events(run_id, "program_call")) == 3, BOUND, "the last call of the program")
    worker = world.worker(run_id)
    below = processes.descendants([worker.pid])
    first = next(each for each in below if PROGRAM_WORDS in b" ".join(processes.command_of(each.pid)))
    for victim in [worker] * killed.endswith("worker") + [first] * killed.startswith("program"):
        processes.send_signal(victim, signal.SIGKILL)
    world.ended(run_id)
    world.gone(run_id)
    assert not processes.is_alive(first)
    again = continue_run(world.service, ContinueOrder(run_id, "Go on."), USER).run_id
    assert world.completed(again) == "Done."
    (told,) = results_anywhere(simulator.requests[-1].body)
    assert "1. shop.price" in told and 'done: {"n": 1}' in told, told
    assert "2. shop.bad" in told and "failed: sold out" in told, told
    assert "3. shop.hangs" in told and "it is not known what it did" in told, told
    assert ("ended by signal SIGKILL" in told) == (killed == "program"), told
    assert ("was not run again" in told) == (killed != "program"), told
    assert world.events(again, "program_call") == []


def test_excluded_tools_stay_ordinary_tools_and_the_named_interpreter_runs_the_programs(
    world: World, tmp_path: Path
) -> None:
    python = write_program(tmp_path / "another-python", ANOTHER_PYTHON)
    mode = {
        "enabled": True,
        "excludedTools": ["bad", "nowhere"],
        "python": str(python),
        "maxTimeoutSeconds": 9,
    }
    in_code_mode(world, codeMode=mode)
    code = "import sys\nshop.price(n=1) + sys.version"
    simulator = world.play(program(code), program(code, 9), call("bad"), says("Done."))
    run_id = world.completed_run()
    tools = offered(simulator.requests[0].body)
    assert (
        "bad" in tools and "price" not in tools and "bad" not in tools["execute_python_code"]["description"]
    )
    version = ".".join(map(str, sys.version_info[:3]))
    assert f"Python {version}" in tools["execute_python_code"]["description"]
    results = [tool_results(request.body)[0] for request in simulator.requests[1:]]
    assert results == ["`executionTimeout` must be 1 to 9 seconds.", '{"n": 1}of another make', "sold out"]
    warnings = [event["message"] for event in world.events(run_id, "warning")]
    assert any("nowhere" in warning for warning in warnings)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"codeMode": {"enabled": True, "python": "/no/such/python"}}, "/no/such/python"),
        ({"codeMode": {"enabled": True, "python": "/bin/false"}}, "asked for its version"),
        ({"mcpServers": {"a": scripted("get_it", "get-it")}}, "get-it"),
    ],
)
def test_what_code_mode_cannot_keep_is_refused_before_the_first_model_call(
    world: World, keys: dict[str, Any], words: str
) -> None:
    in_code_mode(world, **keys)
    simulator = world.play(says("Never said."))
    code, message = world.failed(world.start())
    assert code == "config" and words in message, message
    assert simulator.requests == []


def test_a_configuration_of_cpe_runs_in_the_code_mode_of_its_model(world: World) -> None:
    server = {**scripted({"name": "price", "inputSchema": NUMBER}, "other"), "type": "stdio"}
    config = {
        "version": "1.0",
        "models": [
            {
                "ref": "main",
                "display_name": "Main",
                "id": "claude-sonnet-4-5",
                "type": "anthropic",
                "api_key_env": "ANTHROPIC_API_KEY",
                "codeMode": {"enabled": True, "excludedTools": ["other"]},
            }
        ],
        "subagent": {"name": "seller", "description": "Sells."},
        "defaults": {"model": "main", "codeMode": {"enabled": False, "excludedTools": ["price"]}},
        "mcpServers": {"shop": server},
    }
    (world.agents / "seller.cpe.yaml").write_text(json.dumps(config), encoding="utf-8")
    simulator = world.play(program("shop.price(n=5).json()"), says("Done."))
    assert world.completed(world.start(agent="seller")) == "Done."
    tools = offered(simulator.requests[0].body)
    assert "other" in tools and "price" not in tools and "execute_python_code" in tools
    assert tool_results(simulator.requests[1].body) == ["{'n': 5}"]


def _seconds_since(moment: float) -> float:
    return now().timestamp() - moment
