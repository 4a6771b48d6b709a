"""What a run's journal says of nested runs and of the subagents of foreign programs (SPEC section 8)."""

import json
from typing import Any

from tests.helpers.turns import call, says, shell, tool_results
from tests.helpers.world import World

POST = """
import json, os, socket, sys, urllib.error, urllib.request
from concurrent.futures import ThreadPoolExecutor
address = os.environ["SUBAGENT_LOGGING_ADDRESS"]
assert address == os.environ["CPE_SUBAGENT_LOGGING_ADDRESS"]
event = {"subagentName": "ext", "subagentRunId": "abc", "timestamp": "2026-01-01T00:00:00.123456789Z"}

def post(body, path="/subagent-events", to=address, **headers):
    request = urllib.request.Request(to + path, json.dumps(body).encode(), headers)
    try:
        return urllib.request.urlopen(request, timeout=60).status
    except urllib.error.HTTPError as error:
        return error.code

kinds = ["subagent_start", "tool_call", "tool_result", "thought_trace", "subagent_end"]
more = {"toolName": "grep", "toolCallId": "t1", "payload": {"a": [1]}, "executionTimeoutSeconds": 3,
        "reasoningType": "summary", "tokenUsage": {}}
another = {**event, "type": "thought_trace", "subagentRunId": "another"}
slow = [socket.create_connection(address.split("/")[2].split(":")) for _ in range(80)]
print(json.dumps({
    "beside slow ones": [post(another) for _ in range(3)],
    "taken": [post({**event, "type": kind, **more}) for kind in kinds],
    "elsewhere": [post({}, path="/"), post({}, to=address[:-1] + "_-"[address[-1] == "_"])],
    "of a page": post({}, Host="rebound.example:80"),
    "long": post({**event, "type": "tool_result", "payload": "y" * 200000}),
    "at once": sorted(set(ThreadPoolExecutor(20).map(
        lambda n: post({**event, "type": "thought_trace", "payload": "\\x1b[31m"}), range(30)))),
}))
silent = socket.create_connection(address.split("/")[2].split(":"))
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
    said = next(tool_results(r.body)[0] for r in simulator.requests if "taken" in str(r.body["messages"][-1]))
    answered = json.loads(said)
    assert answered.pop("at once") in ([200], [200, 503])
    assert answered == {
        "beside slow ones": [200] * 3,
        "taken": [200] * 5,
        "elsewhere": [404] * 2,
        "of a page": 403,
        "long": 200,
    }
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
