"""Answers about many runs are bounded, and what does not fit into one comes with the next, once."""

import json
from pathlib import Path

import pytest

from subagent_server.process.launcher import LocalLauncher
from subagent_server.run import transitions
from subagent_server.run.errors import UnreadableMeta
from subagent_server.run.records import RunResult
from subagent_server.run.states import Status, make_run_id
from subagent_server.settings import read_settings
from subagent_server.verbs.contract_agent import agent_statuses
from subagent_server.verbs.list_runs import ListedRuns
from subagent_server.verbs.service import Service, open_service
from subagent_server.verbs.views import MAX_RESULT_CHARACTERS, MAX_TOOL_ANSWER_BYTES, RunRow
from tests.helpers.runs import STARTED, T0, start_run
from tests.verbs.calling import connection

NUMBER = 20
RESULT = "é" * MAX_RESULT_CHARACTERS


def size(answer: object) -> int:
    """Return how many bytes of JSON an answer has."""
    return len(json.dumps(answer, ensure_ascii=False).encode())


@pytest.fixture
def service(tmp_path: Path) -> Service:
    """A service over a root with runs that have ended, each with a long result and a long summary."""
    made = open_service(read_settings(environment={}, cwd=tmp_path), LocalLauncher())
    for number in range(NUMBER):
        run_id = make_run_id(T0, bytes([number, *range(5)]))
        start_run(made.store, run_id, STARTED)
        result = RunResult(outcome=Status.COMPLETED, text=RESULT)
        made.store.update(run_id, transitions.Finished(summary="s" * 4_000), T0, result=result)
    return made


def test_the_ends_of_many_runs_come_in_pages_each_once_on_one_connection_and_by_cursor(
    service: Service,
) -> None:
    seen: list[str] = []
    cursor: dict[str, str] = {}
    with connection(service) as call:
        for _ in range(2):
            page = call("wait_for_runs", waitSeconds=5)
            assert size(page) < MAX_TOOL_ANSWER_BYTES + 5_000
            seen += [view["runId"] for view in page["runs"]]
            left = NUMBER - len(seen)
            assert len(page["later"]) == left and f"{left} more did not fit" in page["instructions"]
            cursor = {"cursor": page["cursor"]}
    with connection(service) as call:
        while cursor:
            page = call("wait_for_runs", waitSeconds=5, **cursor)
            seen += [view["runId"] for view in page["runs"]]
            cursor = {"cursor": page["cursor"]} if "later" in page else {}
        assert page["instructions"] == "Nothing is left to wait for."
    assert sorted(seen) == sorted(set(seen)) == sorted(service.store.run_ids())


def test_named_runs_that_have_ended_are_shown_again_as_far_as_they_fit(service: Service) -> None:
    run_ids = service.store.run_ids()
    with connection(service) as call:
        while "later" in call("wait_for_runs", runIds=run_ids, waitSeconds=0):
            pass
        again = call("wait_for_runs", runIds=run_ids, waitSeconds=0)
    left = NUMBER - len(again["runs"])
    assert 0 < left < NUMBER and "later" not in again
    assert not any("resultTruncated" in view for view in again["runs"]), "it is just short enough"
    assert (
        again["instructions"]
        == f"Nothing is left to wait for. {left} more did not fit: check_status shows each."
    )


def test_rows_have_short_summaries_and_a_list_says_how_many_rows_it_leaves_out(service: Service) -> None:
    with connection(service) as call:
        whole = call("list_runs")
    assert len(whole["runs"]) == NUMBER and {len(row["summary"]) for row in whole["runs"]} == {300}
    many = ListedRuns([RunRow(run_id=f"r{number}", summary="s" * 300) for number in range(500)]).to_wire()
    left = 500 - len(many["runs"])
    assert size(many) < MAX_TOOL_ANSWER_BYTES + 5_000
    assert 0 < left < 500 and many["omitted"] == f"{left} more did not fit: ask by status or agent."


def test_a_run_directory_full_of_long_texts_makes_no_long_answer(service: Service) -> None:
    run_id = service.store.run_ids()[0]
    run, long = service.store.paths.run(run_id), "x" * 30_000
    state = json.loads(run.meta.path.read_bytes())
    question = {"questionContent": long, "questionTimestamp": state["createdAt"], "askedRevision": 1}
    status = {"messageStatus": "pending_parent_reply", "options": [long] * 21}
    state |= dict.fromkeys(("agentName", "label", "summary", "continuesRunId"), long)
    state |= {"error": {"code": long, "message": long, "hint": long}, "pendingQuestions": 99}
    state["messages"] = [question | status | {"messageId": f"{number}{long}"} for number in range(12)]
    run.meta.path.write_text(json.dumps(state), encoding="utf-8")
    request = json.loads(run.request.path.read_bytes()) | {"warnings": [long] * 50}
    run.request.path.write_text(json.dumps(request), encoding="utf-8")
    with connection(service) as call:
        assert size(call("check_status", runId=run_id)) < 3 * MAX_TOOL_ANSWER_BYTES
        assert size(call("list_runs", limit=1)) < 3_000
    state["usage"]["costUsd"] = "1E+999999"
    run.meta.path.write_text(json.dumps(state), encoding="utf-8")
    with connection(service) as call:
        with pytest.raises(UnreadableMeta, match="out of range"):
            call("check_status", runId=run_id)
        assert "unreadable" in call("list_runs", limit=1)["runs"][0]


def test_the_summaries_of_many_agents_are_shorter_and_those_of_a_few_whole(service: Service) -> None:
    agent_ids = service.store.run_ids()
    few = agent_statuses(service, agent_ids[:3])
    assert [status.summary for status, _ in few] == ["s" * 4_000] * 3
    many = agent_statuses(service, [*agent_ids, *("\ud800" * 1_000 for _ in range(970))])
    assert [status.agent_id for status, _ in many[:NUMBER]] == agent_ids
    wire = [status.model_dump(mode="json", exclude_none=True) for status, _ in many]
    assert size(wire) < 4 * MAX_TOOL_ANSWER_BYTES
