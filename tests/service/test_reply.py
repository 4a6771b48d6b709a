"""Answering and asking at the tools: each step of the state is read and written once."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from subagent_server.host import locks
from subagent_server.launch.local import LocalLauncher
from subagent_server.service.access import USER, Caller
from subagent_server.service.changes import Changes
from subagent_server.service.context import Service, open_service
from subagent_server.service.tools.call import Call
from subagent_server.service.tools.dispatch import ToolDispatcher
from subagent_server.service.tools.table import TOOLS
from subagent_server.settings import read_settings
from tests.helpers.runs import ASKED, RUN_ID, STARTED, T0, start_run
from tests.helpers.state_files import StateFiles, counted_state_files


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
    changes = Changes(service.store)
    dispatcher = ToolDispatcher(service, changes, caller, TOOLS)
    try:
        with counted_state_files() as count:
            answer = asyncio.run(dispatcher.call(tool, Call(arguments, longest_wait=5.0)))
    finally:
        changes.close()
    return answer, count


def test_a_reply_reads_the_state_once_and_once_more_under_the_lock_and_writes_it_once(
    service: Service,
) -> None:
    answer, count = called(service, "reply_subagent", runId=RUN_ID, answer="blue")
    assert answer["success"] is True
    assert answer["updatedMetadata"]["status"] == "parent_replied"
    assert (count.reads, count.writes) == (2, 1)


def test_a_repeated_reply_writes_nothing(service: Service) -> None:
    called(service, "reply_subagent", runId=RUN_ID, messageId="q1", answer="blue")
    answer, count = called(service, "reply_subagent", runId=RUN_ID, messageId="q1", answer="blue")
    assert answer["success"] is True
    assert (count.reads, count.writes) == (2, 0)


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


def test_a_question_and_a_report_of_a_child_read_and_write_as_often_as_a_reply(service: Service) -> None:
    for tool, given in (
        ("ask_parent", {"question": "Why?", "waitSeconds": 0}),
        ("update_status", {"status": "running", "summary": "Half."}),
    ):
        _, count = called(service, tool, Caller(RUN_ID), **given)
        assert (count.reads, count.writes) == (2, 1), tool


def test_a_run_does_not_answer_itself(service: Service) -> None:
    with pytest.raises(Exception, match="asked that itself"):
        called(service, "reply_subagent", Caller(RUN_ID), runId=RUN_ID, answer="blue")
