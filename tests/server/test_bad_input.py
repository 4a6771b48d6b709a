"""Wrong calls: one sentence that says what to do, nothing half-made, and the server goes on."""

from collections.abc import Iterator

import pytest

from tests.helpers.mcp_client import Parent
from tests.helpers.world import World


@pytest.fixture
def parent(world: World) -> Iterator[Parent]:
    """A client; the one agent here gives runs that have failed at once. No run may be half-made."""
    world.agent(tools="Bash(git diff:*)")
    with world.serve() as client:
        yield client
        assert isinstance(client.call("list_runs")["runs"], list), "the server goes on"
    made = [world.paths(run_id) for run_id in world.store.run_ids()]
    assert all(run.meta.exists() for run in made)


def test_unknown_names_and_ids_are_refused_with_those_that_exist(world: World, parent: Parent) -> None:
    assert "the tools here are run_worker, check_status" in parent.refused("no_such_tool")
    assert "the tools here are run_worker" in parent.refused("run_nobody", prompt="Go.")
    assert "the tools here" in parent.refused("x" * 5000)
    for hostile in ("../../etc/passwd", "a\0b", "x" * 5000, "", ".", "..", "A", "-", "a/b", "ä", ".changes"):
        sentence = parent.refused("check_status", runId=hostile)
        assert "is not a run id" in sentence and len(sentence) < 400
        assert "is not a run id" in parent.refused("stop_run", runId=hostile)
        assert "is not a run id" in parent.refused("get_logs", runId=hostile)
        assert "is not a run id" in parent.refused("reply_subagent", runId=hostile, answer="x")
        assert "is not a run id" in parent.refused("wait_for_runs", runIds=[hostile])
    for tool in ("check_status", "stop_run", "get_logs"):
        assert "There is no run '20261122-093015-417-k3f9qz'" in parent.refused(
            tool, runId="20261122-093015-417-k3f9qz"
        )
    assert world.store.run_ids() == []


def test_arguments_that_do_not_fit_are_refused_by_name(world: World, parent: Parent) -> None:
    for arguments, word in (
        ({}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": "Go.", "inputs": "a.txt"}, "inputs"),
        ({"prompt": "Go.", "inputs": [1]}, "inputs"),
        ({"prompt": "Go.", "waitSeconds": "soon"}, "waitSeconds"),
        ({"prompt": "Go.", "waitSeconds": -1}, "waitSeconds"),
        ({"prompt": "Go.", "waitSecond": 5}, "waitSecond"),
        ({"prompt": "Go.", "cwd": 1}, "cwd"),
        ({"prompt": "Go.", "label": ["a"]}, "label"),
        ({"prompt": None}, "prompt: null is not of type 'string'"),
        ({"prompt": "Go.", "inputs": "[1"}, "inputs"),
        ({"prompt": "Go.", "inputs": r'["\ud83d"]'}, "inputs"),
    ):
        assert word in parent.refused("run_worker", **arguments)
    for tool, arguments, word in (
        ("check_status", {}, "runId"),
        ("check_status", {"runId": 7}, "runId"),
        ("wait_for_runs", {"runIds": "a"}, "runIds"),
        ("wait_for_runs", {"waitFor": "some"}, "waitFor"),
        ("list_runs", {"limit": 0}, "limit"),
        ("list_runs", {"status": "done"}, "status"),
        ("get_logs", {"runId": "a", "lines": 0}, "lines"),
        ("get_logs", {"runId": "a", "lines": 100_000}, "lines"),
        ("get_logs", {"runId": "a", "lines": 1.5}, "lines"),
        ("get_logs", {"runId": "a", "stream": "secrets"}, "stream"),
        ("reply_subagent", {"runId": "a"}, "answer"),
        ("update_status", {"runId": "a", "status": "stopped"}, "status"),
        ("update_status", {"status": "running"}, "runId"),
        ("ask_parent", {"question": "Why?"}, "runId"),
    ):
        assert word in parent.refused(tool, **arguments), (tool, arguments)
    assert world.store.run_ids() == []


def test_cursors_that_are_none_are_refused(parent: Parent) -> None:
    run_id = parent.call("run_worker", prompt="Go.")["runId"]
    for cursor in ("abc", "-1", "9" * 30, "1.5", "٣"):
        assert "cursor" in parent.refused("get_logs", runId=run_id, cursor=cursor)
    for cursor in ("###", "a.b", "a,,b", "é", "a" * 33, ",".join(["ab"] * 1001), "eyJhIjogMX0="):
        assert "is no cursor" in parent.refused("wait_for_runs", cursor=cursor)
    beyond = parent.call("get_logs", runId=run_id, cursor="999999")
    assert beyond["text"] == "" and beyond["atEnd"]


def test_calls_that_do_not_suit_the_state_of_a_run_name_that_state(parent: Parent) -> None:
    run_id = parent.call("run_worker", prompt="Go.")["runId"]
    assert "has no open question" in parent.refused("reply_subagent", runId=run_id, answer="yes")
    assert "no question 'q7'" in parent.refused("reply_subagent", runId=run_id, messageId="q7", answer="yes")
    assert "no question 'q7'" in parent.refused("check_status", runId=run_id, messageId="q7")
    assert f"Run {run_id} is failed" in parent.refused("ask_parent", runId=run_id, question="Why?")
    assert f"Run {run_id} is failed" in parent.refused("update_status", runId=run_id, status="running")
    assert parent.call("update_status", runId=run_id, status="completed")["status"] == "failed"
    assert parent.call("stop_run", runId=run_id)["status"] == "failed"


def test_a_state_that_cannot_be_read_is_listed_as_such_and_the_other_runs_work(
    world: World, parent: Parent
) -> None:
    broken, foreign, fine = (parent.call("run_worker", prompt="Go.")["runId"] for _ in range(3))
    world.abandoned |= {broken, foreign}
    world.paths(broken).meta.path.write_bytes(b'{"runId": "')
    world.paths(foreign).meta.path.write_bytes(world.paths(fine).meta.path.read_bytes())
    rows = {row["runId"]: row for row in parent.call("list_runs")["runs"]}
    assert rows[fine]["status"] == "failed" and "unreadable" not in rows[fine]
    for run_id in (broken, foreign):
        assert "cannot be read" in rows[run_id]["unreadable"] and "status" not in rows[run_id]
        for tool in ("check_status", "stop_run", "get_logs"):
            assert f"The state of run {run_id} cannot be read" in parent.refused(tool, runId=run_id)
    (view,) = parent.call("wait_for_runs", runIds=[fine])["runs"]
    assert view["runId"] == fine
