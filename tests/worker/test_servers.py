"""The MCP servers of a run, from the agent file to the model and back (SPEC section 8)."""

import json
from pathlib import Path

import pytest

from subagent_server.run import processes
from tests.helpers.mcp_servers import reference, scripted
from tests.helpers.turns import calls, says, tool_results, use
from tests.helpers.world import World

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


def test_a_server_that_does_not_start_fails_the_run_before_any_model_call_with_its_own_words(
    world: World,
) -> None:
    mark = world.home / "mark"
    broken = scripted(stderr=["no licence found"], exit=7)
    hanging = scripted("x", mark=str(mark))
    simulator = world.agent_saying(says("Never said."), mcpServers={"broken": broken, "fine": hanging})
    run_id = world.start()
    code, message = world.failed(run_id)
    assert code == "config" and "broken ended with exit code 7; it said: no licence found" in message
    world.gone(run_id)
    assert all(processes.identify(pid) is None for pid in pids(mark)), "the others are left, too"
    assert simulator.requests == []


def test_a_name_that_no_server_offers_stands_in_the_result_and_the_log(world: World) -> None:
    world.agent(tools="mcp__own__told, mcp__own__gone", mcpServers={"own": scripted({"name": "told"})})
    world.play(says("Done."))
    run_id = world.completed_run()
    message = "No tool is offered under the names mcp__own__gone."
    assert world.result(run_id).warnings == [message]
    assert [event["message"] for event in world.events(run_id, "warning")] == [message]
