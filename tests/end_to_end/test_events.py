"""What a run's journal says of nested runs and of the subagents of foreign programs (SPEC section 8)."""

from typing import Any

from tests.helpers.turns import call, says, shell
from tests.helpers.world import World

POST = """
import json, os, urllib.request
address = os.environ["SUBAGENT_LOGGING_ADDRESS"]
assert address == os.environ["CPE_SUBAGENT_LOGGING_ADDRESS"]
event = {"subagentName": "ext", "subagentRunId": "abc", "timestamp": "2026-01-01T00:00:00.123456789Z"}

def post(body):
    request = urllib.request.Request(address + "/subagent-events", json.dumps(body).encode())
    return urllib.request.urlopen(request, timeout=60).status

kinds = ["subagent_start", "tool_call", "tool_result", "thought_trace", "subagent_end"]
more = {"toolName": "grep", "toolCallId": "t1", "payload": {"a": [1]}, "executionTimeoutSeconds": 3,
        "reasoningType": "summary", "tokenUsage": {}}
print([post({**event, "type": kind, **more}) for kind in kinds])
post({**event, "type": "tool_result", "payload": "y" * 200000})
post({**event, "type": "thought_trace", "payload": "\\x1b[31m"})
"""


def test_the_journal_of_a_run_tells_of_its_nested_runs_and_of_foreign_subagents(world: World) -> None:
    world.agent("boss", agents=["lead"])
    world.agent("lead", agents=["hand"])
    world.agent("hand")
    (world.work / "post.py").write_text(POST, encoding="utf-8")
    conversations = [
        {"when": {"prompt": "^Boss"}, "turns": [_start("lead"), shell("python3 post.py"), says("All done.")]},
        {"when": {"prompt": "^Begin, lead"}, "turns": [_start("hand"), says("Led.")]},
    ]
    simulator = world.play(shell("echo hello"), says("Worked."), conversations=conversations)
    run_id = world.start("Boss.", agent="boss")
    assert world.completed(run_id) == "All done."
    assert any(str([200] * 5) in str(request.body["messages"][-1]) for request in simulator.requests)
    world.gone(run_id)  # its journal ends after its state
    _check_nested(world, run_id)
    _check_foreign(world, run_id)


def _start(agent: str) -> dict[str, Any]:
    return call(f"run_{agent}", prompt=f"Begin, {agent}.", waitSeconds=60)


def _check_nested(world: World, run_id: str) -> None:
    (lead,) = world.store.children_of(run_id)
    (hand,) = world.store.children_of(lead)
    told = [(e["event"], e["subagentName"]) for e in _told(world, run_id) if e.get("subagentRunId") == hand]
    kinds = ["subagent_start", "tool_call", "tool_result", "text", "subagent_end"]
    assert told == [(kind, "hand") for kind in kinds], "what is two below is told once, with its origin"
    ends = [e for e in _told(world, run_id) if e["event"] == "subagent_end" and e["subagentRunId"] == lead]
    assert [(e["status"], e["payload"]) for e in ends] == [("completed", "Led.")]
    log = world.paths(run_id).log.path.read_text(encoding="utf-8")
    assert f"│ hand {hand[-6:]}: → bash echo hello" in log.replace('{"command": "echo hello"}', "echo hello")
    assert world.events(run_id)[-1]["type"] == "run_ended"
    assert world.meta(run_id).with_descendants.turns == 3 + 2 + 2


def _check_foreign(world: World, run_id: str) -> None:
    told = [e for e in _told(world, run_id) if e.get("subagentRunId") == "abc"]
    assert told[0] | {"seq": 0, "at": ""} == {
        "seq": 0,
        "at": "",
        "type": "subagent_event",
        "event": "subagent_start",
        "subagentName": "ext",
        "subagentRunId": "abc",
        "timestamp": "2026-01-01T00:00:00.123456Z",
        "toolName": "grep",
        "toolCallId": "t1",
        "executionTimeoutSeconds": 3.0,
        "reasoningType": "summary",
        "payload": {"a": [1]},
    }
    (long,) = [e for e in told if str(e.get("payload", "")).startswith("yyy")]
    assert len(long["payload"]) < 1_100, "it is cut"
    assert "\x1b" not in world.paths(run_id).log.path.read_text(encoding="utf-8")


def _told(world: World, run_id: str) -> list[dict[str, Any]]:
    return world.events(run_id, "subagent_event")
