"""The MCP servers of a run, from the agent file to the model and back (SPEC section 8)."""

import json
import signal
from pathlib import Path

import pytest

from subagent_server.run import processes
from subagent_server.run.states import Status
from tests.helpers.mcp_servers import reference, scripted
from tests.helpers.turns import asks, call, calls, says, tool_results, use
from tests.helpers.wait import wait_for
from tests.helpers.world import BOUND, World

SECRET = "tok-0123456789-of-the-header"


def pids(mark: Path) -> list[int]:
    """Return the processes of a scripted server that have been started so far."""
    return [int(line) for line in mark.read_text(encoding="utf-8").split()] if mark.exists() else []


@pytest.mark.npm
def test_an_agent_file_is_enough_to_give_a_model_the_tools_of_foreign_servers(
    world: World,
) -> None:
    node, *args = reference("filesystem", str(world.work))
    (world.work / "note.txt").write_text("Remember the milk.", encoding="utf-8")
    noisy = scripted(
        {"name": "whoami", "does": {"env": "SUBAGENT_RUN_ID"}},
        {"name": "secret", "does": {"env": "SERVICE_TOKEN"}},
        {"name": "says", "does": {"stderr": "asked with $SERVICE_TOKEN"}},
        {"name": "a.b", "inputSchema": {"type": "object", "properties": {"$select": {"type": "string"}}}},
        {"name": "forbidden"},
        stderr=["ready to serve", "my token is $SERVICE_TOKEN"],
        keys={"env": {"SERVICE_TOKEN": "${HOST_TOKEN}"}},
    )
    world.environment["HOST_TOKEN"] = SECRET
    world.agent(
        mcpServers={"files": {"command": node, "args": args}, "noisy": noisy},
        disallowedTools="mcp__noisy__forbidden, Bash",
    )
    simulator = world.play(
        calls(
            use("read_text_file", path=str(world.work / "note.txt")),
            use("whoami"),
            use("secret"),
            use("a_b", _select="name"),
            use("says"),
        ),
        says("Read."),
    )
    run_id = world.start()
    assert world.completed(run_id) == "Read."
    offered = {tool["name"]: tool for tool in simulator.requests[0].body["tools"]}
    assert {"read_text_file", "directory_tree", "whoami", "a_b", "ask_parent"} <= offered.keys()
    assert "forbidden" not in offered and "bash" not in offered
    results = tool_results(simulator.requests[1].body)
    assert "Remember the milk." in results[0]
    assert results[1:3] == [run_id, SECRET], "a server has the environment of its run"
    assert json.loads(results[3]) == {"$select": "name"}, "the server hears its own names"

    said = [(event["server"], event["text"]) for event in world.events(run_id, "server_log")]
    assert ("noisy", "asked with ***") in said and ("noisy", "ready to serve") not in said
    log = world.paths(run_id).log.path.read_text(encoding="utf-8")
    assert "[noisy] asked with ***" in log
    kept = world.paths(run_id).server_logs.path / "noisy.log"
    assert kept.read_text(encoding="utf-8").splitlines() == [
        "ready to serve",
        "my token is ***",
        "asked with ***",
    ]
    (warning,) = world.events(run_id, "warning")
    assert "a.b" in warning["message"] and "a_b" in warning["message"]
    world.gone(run_id)
    for path in world.runs.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path


def test_a_call_that_hangs_ends_at_its_own_timeout_and_holds_up_no_other(world: World) -> None:
    server = scripted(
        "quick",
        {"name": "hangs", "does": {"hang": True}},
        {"name": "dies", "does": {"exit": 3}},
        {"name": "count", "does": {"count": True}},
        keys={"callTimeoutSeconds": 1},
    )
    world.agent(mcpServers={"odd": server})
    simulator = world.play(
        calls(use("hangs"), use("quick", n=1), use("quick", n=2)),
        call("dies"),
        call("count"),
        call("dies"),
        call("count"),
        says("Done."),
    )
    run_id = world.start()
    world.completed(run_id)
    results = [tool_results(request.body) for request in simulator.requests[1:]]
    assert "did not answer within 1 s" in results[0][0] and results[0][1:] == ['{"n": 1}', '{"n": 2}']
    ended = [event["toolName"] for event in world.events(run_id, "tool_result")]
    assert ended[:3] == ["quick", "quick", "hangs"], "each has its line when it is over"

    assert "ended with exit code 3; it said: going down" in results[1][0]
    assert "started again" in results[1][0] and "unknown" in results[1][0]
    assert results[2] == ["1"], "it is a new process"
    assert "for the second time" in results[3][0] and "go on without" in results[4][0].lower()
    warnings = [event["message"] for event in world.events(run_id, "warning")]
    assert len(warnings) == 2 and "started again" in warnings[0] and "second time" in warnings[1]


def test_a_server_that_does_not_start_fails_the_run_before_any_model_call_with_its_own_words(
    world: World,
) -> None:
    mark = world.home / "mark"
    broken = scripted(stderr=["no licence found"], exit=7)
    hanging = scripted("x", mark=str(mark))
    world.agent("one", mcpServers={"broken": broken, "fine": hanging})
    world.agent("two", mcpServers={"a": scripted("search"), "b": scripted("search", "find")})
    world.agent("three", mcpServers={"b": scripted("bash")})
    simulator = world.play(says("Never said."))
    one, two, three = (world.start(agent=name) for name in ("one", "two", "three"))
    code, message = world.failed(one)
    assert code == "config" and "broken ended with exit code 7; it said: no licence found" in message
    world.gone(one)
    assert all(processes.identify(pid) is None for pid in pids(mark)), "the others are left, too"
    code, message = world.failed(two)
    assert code == "config" and "a and b both offer a tool search" in message
    assert "prefix: true" in str(world.meta(two).error)
    code, message = world.failed(three)
    assert code == "config" and "b offers a tool bash, and so does the agent itself" in message
    assert simulator.requests == []


@pytest.mark.race
def test_a_stop_while_servers_are_connected_ends_the_run_at_once_and_leaves_no_process(world: World) -> None:
    mark = world.home / "mark"
    world.agent(mcpServers={"silent": scripted(silent=True, mark=str(mark))})
    world.play(says("Never said."))
    run_id = world.start()
    wait_for(lambda: pids(mark), BOUND, "the start of the server")
    assert world.stop(run_id, "changed my mind").meta.status is Status.STOPPED
    world.gone(run_id)
    assert all(processes.identify(pid) is None for pid in pids(mark))


def test_servers_die_with_the_worker_however_it_ends(world: World) -> None:
    mark = world.home / "mark"
    world.agent(mcpServers={"x": scripted("t", mark=str(mark))})
    world.play(asks("Go on?"), says("Never said."))
    run_id = world.start()
    world.asking(run_id)
    processes.send_signal(world.worker(run_id), signal.SIGKILL)
    assert world.failed(run_id)[0] == "crashed"
    world.gone(run_id)
    assert all(processes.identify(pid) is None for pid in pids(mark)) and len(pids(mark)) == 1
