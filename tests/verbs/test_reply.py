"""Answering and asking at the tools: each step of the state is read and written once."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from subagent_server.process.launcher import LocalLauncher
from subagent_server.run import locks, transitions
from subagent_server.run.errors import BadArgument, MessageClosed, SubagentError
from subagent_server.run.states import (
    MAX_OPEN_QUESTIONS,
    MAX_QUESTION_CHARACTERS,
    MAX_SUMMARY_CHARACTERS,
)
from subagent_server.settings import read_settings
from subagent_server.verbs.access import USER, Caller, NotAllowed
from subagent_server.verbs.service import Service, open_service
from tests.helpers.runs import ASKED, RUN_ID, STARTED, T0, make_request, start_run
from tests.helpers.state_files import StateFiles, counted_state_files
from tests.verbs.calling import connection


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """A service over a root with one run that has asked q1, and whose lock is held."""
    made = open_service(read_settings(environment={}, cwd=tmp_path), LocalLauncher())
    start_run(made.store, RUN_ID, STARTED, ASKED)
    held = locks.take(made.store.paths.run(RUN_ID).live_lock)
    assert held is not None
    yield made
    os.close(held)


def called(
    service: Service, tool: str, caller: Caller = USER, **arguments: Any
) -> tuple[dict[str, Any], StateFiles]:
    """Call a tool, and return its answer and how often it has read and written states."""
    with connection(service, caller) as call, counted_state_files() as count:
        return call(tool, **arguments), count


def test_a_reply_reads_the_state_once_and_once_more_under_the_lock_and_writes_it_once(
    service: Service,
) -> None:
    answer, count = called(service, "reply_subagent", runId=RUN_ID, answer="blue")
    assert answer["success"] is True
    assert answer["updatedMetadata"]["status"] == "parent_replied"
    assert (count.reads, count.writes) == (2, 1)


@pytest.mark.parametrize("given", [{"messageId": "q1"}, {}])
def test_a_repeated_reply_writes_nothing(service: Service, given: dict[str, Any]) -> None:
    called(service, "reply_subagent", runId=RUN_ID, answer="blue")
    answer, count = called(service, "reply_subagent", runId=RUN_ID, **given, answer="blue")
    assert answer["success"] is True
    assert (count.reads, count.writes) == (2, 0)
    with pytest.raises(MessageClosed):
        called(service, "reply_subagent", runId=RUN_ID, **given, answer="red")


@pytest.mark.parametrize(
    ("happened", "instead"),
    [([], "tell the agent more"), ([transitions.Finished(summary="Done.")], "start or continue a run")],
)
def test_another_answer_is_refused_with_the_first_and_what_to_do_instead(
    service: Service, happened: list[transitions.RunEvent], instead: str
) -> None:
    called(service, "reply_subagent", runId=RUN_ID, answer="blue")
    for event in (transitions.ReplyAcknowledged(message_id="q1"), *happened):
        service.store.update(RUN_ID, event, T0)
    assert called(service, "reply_subagent", runId=RUN_ID, messageId="q1", answer="blue")[0]["success"]
    words = f"was answered by the parent at .* with 'blue' and keeps that answer: {instead}"
    names: tuple[dict[str, Any], ...] = ({"messageId": "q1"}, {})
    for named in names:
        with pytest.raises(MessageClosed, match=words):
            called(service, "reply_subagent", runId=RUN_ID, **named, answer="red")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"answer": "blue"}, r'\(q1 "Which colour\?", q2 "Which colour\?"\): name one with messageId\.'),
        ({"answer": "blue", "messageId": "q9"}, "open are q1, q2"),
        ({"answer": "x" * 200_001, "messageId": "q1"}, "200,000 characters"),
    ],
)
def test_an_answer_that_cannot_be_taken_is_refused_and_changes_nothing(
    service: Service, arguments: dict[str, Any], words: str
) -> None:
    before = service.store.update(RUN_ID, ASKED, T0)
    with pytest.raises(SubagentError, match=words):
        called(service, "reply_subagent", runId=RUN_ID, **arguments)
    assert service.store.read(RUN_ID) == before


def test_a_reply_that_waits_returns_at_once_if_another_question_is_open(service: Service) -> None:
    service.store.update(RUN_ID, ASKED, T0)
    answer, count = called(
        service, "reply_subagent", runId=RUN_ID, messageId="q1", answer="blue", waitSeconds=5
    )
    assert answer["updatedMetadata"]["messages"][0]["messageId"] == "q2"
    assert (count.reads, count.writes) == (2, 1)


@pytest.mark.parametrize(("tool", "given"), [("check_status", {}), ("get_logs", {"stream": "events"})])
def test_a_look_reads_the_state_once_and_writes_nothing(
    service: Service, tool: str, given: dict[str, Any]
) -> None:
    _, count = called(service, tool, runId=RUN_ID, **given)
    assert (count.reads, count.writes) == (1, 0)


def test_an_answer_that_a_child_takes_is_read_once_and_acknowledged_in_one_write(service: Service) -> None:
    called(service, "reply_subagent", runId=RUN_ID, answer="blue")
    view, count = called(service, "check_status", Caller(RUN_ID), runId=RUN_ID, messageId="q1")
    assert view["messages"][0]["answer"] == "blue"
    assert (count.reads, count.writes) == (2, 1)


def test_a_child_gets_its_answer_where_the_disk_takes_no_acknowledgement(service: Service) -> None:
    called(service, "reply_subagent", runId=RUN_ID, answer="blue")
    lock = service.store.paths.run(RUN_ID).meta_lock.path
    lock.unlink()
    lock.mkdir()
    view, _ = called(service, "check_status", Caller(RUN_ID), runId=RUN_ID, messageId="q1")
    assert view["messages"][0]["answer"] == "blue"


def test_a_question_and_a_report_of_a_child_read_and_write_as_often_as_a_reply(service: Service) -> None:
    for tool, given in (
        ("ask_parent", {"question": "Why?", "waitSeconds": 0}),
        ("update_status", {"status": "running", "summary": "Half."}),
    ):
        _, count = called(service, tool, Caller(RUN_ID), **given)
        assert (count.reads, count.writes) == (2, 1), tool


def test_a_run_does_not_answer_itself(service: Service) -> None:
    with pytest.raises(NotAllowed, match="does not answer itself"):
        called(service, "reply_subagent", Caller(RUN_ID), runId=RUN_ID, answer="blue")


def test_a_parent_that_names_a_question_sees_it_and_takes_no_answer_from_its_asker(service: Service) -> None:
    called(service, "reply_subagent", runId=RUN_ID, answer="blue")
    view, count = called(service, "check_status", runId=RUN_ID, messageId="q1")
    assert (view["messages"][0]["answer"], view["status"]) == ("blue", "parent_replied")
    assert "Your question" not in view["instructions"] and count.writes == 0
    own, _ = called(service, "check_status", Caller(RUN_ID), runId=RUN_ID)
    assert own["messages"][0]["answer"] == "blue", "the asker still finds its answer"


def test_a_program_without_a_token_takes_the_answer_to_what_it_has_asked_here(service: Service) -> None:
    with connection(service) as call:
        asked = call("ask_parent", runId=RUN_ID, question="Which size?", waitSeconds=0)["messageId"]
        for message_id in ("q1", asked):
            of_it = {"runId": RUN_ID, "messageId": message_id}
            call("reply_subagent", **of_it, answer="large")
            shown = {m["messageId"]: m for m in call("check_status", **of_it)["messages"]}
            assert shown[message_id]["answer"] == "large"
    statuses = [m.message_status.value for m in service.store.read(RUN_ID).messages]
    assert statuses == ["parent_replied", "acknowledged_by_subagent"]


def test_a_view_of_many_long_questions_is_bounded_and_says_how_many_follow(service: Service) -> None:
    long = transitions.QuestionAsked(
        question="?" * MAX_QUESTION_CHARACTERS, options=("o" * 200,) * 20, expires_at=ASKED.expires_at
    )
    for _ in range(MAX_OPEN_QUESTIONS - 1):
        service.store.update(RUN_ID, long, T0)
    view, _ = called(service, "check_status", runId=RUN_ID)
    assert [m["messageId"] for m in view["messages"]] == ["q1", "q2"] and len(json.dumps(view)) < 60_000
    assert view["messagesOmitted"] == MAX_OPEN_QUESTIONS - 2
    named, _ = called(service, "check_status", runId=RUN_ID, messageId="q9")
    assert [m["messageId"] for m in named["messages"]] == ["q1", "q9"]


def test_a_long_summary_is_cut_in_the_state_and_whole_in_the_result(service: Service) -> None:
    long = "s" * 150_000
    view, _ = called(service, "update_status", Caller(RUN_ID), status="running", summary=long)
    assert len(view["summary"]) == MAX_SUMMARY_CHARACTERS and view["summary"].endswith("…")
    view, _ = called(service, "update_status", Caller(RUN_ID), status="completed", summary=long)
    assert len(view["summary"]) == MAX_SUMMARY_CHARACTERS and view["resultTruncated"] is True
    result = service.store.read_result(RUN_ID)
    assert result is not None and result.text == long
    (row,) = called(service, "list_runs")[0]["runs"]
    assert len(row["summary"]) == 300


@pytest.mark.process
def test_a_run_whose_agent_promises_an_output_completes_only_with_one(service: Service) -> None:
    schema = {"type": "object", "properties": {"size": {"type": "integer"}}, "required": ["size"]}
    request = make_request(agent={"name": "reviewer", "outputSchema": schema})
    service.store.paths.run(RUN_ID).request.path.write_bytes(request.to_json())
    for payload, why in (
        (None, "is not JSON"),
        ("tall", "is not JSON"),
        ('{"size": 3, "far": 1e999}', "is not JSON .Out of range"),
        (f'{{"size": 3, "deep": {"[" * 200}{"]" * 200}}}', "is not JSON .recursion limit"),
        ('{"size": "tall"}', "'tall' is not"),
    ):
        given = {} if payload is None else {"payload": payload}
        with pytest.raises(BadArgument, match=why):
            called(service, "update_status", Caller(RUN_ID), status="completed", **given)
        assert not service.store.read(RUN_ID).status.is_terminal
    view, _ = called(service, "update_status", Caller(RUN_ID), status="completed", payload='{"size": 3}')
    assert (view["status"], view["output"], view["summary"]) == ("completed", {"size": 3}, '{"size": 3}')
    again, _ = called(service, "update_status", Caller(RUN_ID), status="completed", payload="tall")
    assert again["output"] == {"size": 3}, "a second end changes nothing"
    assert list(json.loads(service.store.paths.run(RUN_ID).result.read(1000))) == [
        "outcome",
        "text",
        "output",
    ]


def test_a_stream_that_a_run_does_not_have_is_an_empty_page_that_says_why(service: Service) -> None:
    page, _ = called(service, "get_logs", runId=RUN_ID, stream="result")
    assert (page["text"], page["note"]) == (
        "",
        f"Run {RUN_ID} is waiting_parent_reply: its result comes with its end.",
    )
    called(service, "stop_run", runId=RUN_ID)
    page, _ = called(service, "get_logs", runId=RUN_ID, stream="payload")
    assert "stopped and left no payload" in page["note"]
    with pytest.raises(MessageClosed, match="cancelled when the run ended"):
        called(service, "reply_subagent", runId=RUN_ID, messageId="q1", answer="late")


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("ask_parent", {"question": "x" * 20_001}, "20,001 of at most 20,000 characters"),
        ("ask_parent", {"question": "Which?", "options": ["x"] * 21}, "21 of at most 20 options"),
        ("ask_parent", {"question": "Which?", "options": ["x" * 201]}, "Option 1 has 201 of at most 200"),
        ("update_status", {"status": "running", "summary": "x" * 200_001}, "200,001 of at most 200,000"),
        (
            "update_status",
            {"status": "completed", "payload": "x" * ((64 << 20) + 1)},
            "at most 67,108,864 bytes",
        ),
        ("stop_run", {"reason": "x" * 4_001}, "4,001 of at most 4,000"),
        ("update_status", {"status": "running", "payload": "half"}, "A payload comes with the end"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason_and_changes_nothing(
    service: Service, tool: str, arguments: dict[str, Any], words: str
) -> None:
    before = service.store.read(RUN_ID)
    with pytest.raises(BadArgument, match=words):
        called(service, tool, Caller(RUN_ID), runId=RUN_ID, **arguments)
    assert service.store.read(RUN_ID) == before


def test_a_run_is_failed_from_outside_once(service: Service) -> None:
    end: dict[str, Any] = {"status": "failed", "summary": "No such table.", "payload": "Half of it."}
    view, _ = called(service, "update_status", runId=RUN_ID, **end)
    assert (view["error"]["code"], view["error"]["message"]) == ("agent_error", "No such table.")
    assert view["error"]["hint"] == "Its log shows how far it came; continue it, or start it again."
    assert called(service, "get_logs", runId=RUN_ID, stream="payload")[0]["text"] == "Half of it."
    before = service.store.read(RUN_ID)
    again, _ = called(service, "update_status", runId=RUN_ID, status="completed", summary="Or is there?")
    assert again["status"] == "failed" and service.store.read(RUN_ID) == before


def test_a_reply_with_a_secret_says_that_it_is_kept_without(service: Service) -> None:
    answer, _ = called(service, "reply_subagent", runId=RUN_ID, answer=f"It is ghp_{'a1B2' * 9}.")
    assert answer["message"] == "The answer is recorded, with *** in place of what is secret in it."
    assert service.store.read(RUN_ID).messages[0].answer_content == "It is ***."
