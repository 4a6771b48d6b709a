"""Conversations with searches of the API that are carried on: the API takes them, and no search is lost."""

from typing import Any

import pytest

from subagent_server.loop.resume import Resumed, sendable
from tests.helpers.api_checks import check_server_calls
from tests.loop.test_resume import Message, carried_on, given, past, said, used

SEARCH: Message = {
    "type": "server_tool_use",
    "id": "srvtoolu_1",
    "name": "web_search",
    "input": {"query": "x"},
}
RESULT: Message = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
BASH = used("a", "bash", command="ls")
PAUSED: dict[str, Any] = {"stop": "pause_turn"}


def roles(found: Resumed) -> list[str]:
    return [message["role"] for message in found.messages]


def blocks(found: Resumed) -> list[str]:
    """Return the kinds of the blocks of all replies."""
    return [b["type"] for m in found.messages if m["role"] == "assistant" for b in m["content"]]


def test_a_paused_reply_is_followed_by_its_rest_and_both_texts_are_the_result() -> None:
    found = carried_on(past(said("One.", SEARCH, **PAUSED), said(RESULT, "Two.", stop="end_turn")))
    assert roles(found) == ["user", "assistant", "assistant"]
    assert blocks(found) == ["text", "server_tool_use", "web_search_tool_result", "text"]
    assert found.outcome is not None and found.outcome.text == "One.\n\nTwo."


def test_a_run_that_ended_in_a_pause_goes_on_without_a_word_between() -> None:
    messages = past(said("One.", SEARCH, RESULT, **PAUSED))
    found = carried_on(messages, web_tools=True)
    assert roles(found) == ["user", "assistant"] and found.text == "One." and found.outcome is None
    cut = carried_on(past(said("One.", SEARCH, **PAUSED)), web_tools=True)
    assert blocks(cut) == ["text", "server_tool_use"], "the API makes the call when the reply goes on"


def test_a_cut_search_is_left_out_if_somebody_speaks_behind_it() -> None:
    found = carried_on(past(said("One.", SEARCH, **PAUSED)), prompt="And now?")
    assert blocks(found) == ["text"] and roles(found) == ["user", "assistant", "user"]
    alone = carried_on(past(said(SEARCH, **PAUSED)), prompt="And now?")
    assert "cut here" in alone.messages[1]["content"][0]["text"]


def test_a_search_beside_a_call_of_ours_waits_for_the_next_reply() -> None:
    found = carried_on(past(said(SEARCH, BASH), given("a", "out")))
    assert blocks(found) == ["server_tool_use", "tool_use"]
    whole = carried_on(past(said(SEARCH, BASH), given("a", "out"), said(RESULT, "Done.", stop="end_turn")))
    assert blocks(whole) == ["server_tool_use", "tool_use", "web_search_tool_result", "text"]


@pytest.mark.parametrize(
    "replies",
    [
        [said(RESULT, "One.")],
        [said(SEARCH, "One."), said(RESULT, "Two.")],
        [said(SEARCH, RESULT, RESULT, "One.")],
        [said({"type": "server_tool_use", "id": 3, "name": "x", "input": {}}, "One.")],
        [said({"type": "web_search_tool_result", "content": []}, "One.")],
        [{"role": "user", "content": [RESULT, SEARCH, {"type": "text", "text": "One."}]}],
    ],
    ids=["no call", "no pause", "two results", "a wrong id", "no id", "of a user"],
)
def test_what_the_api_would_refuse_is_left_out_and_the_texts_stay(replies: list[Message]) -> None:
    found = carried_on(past(*replies), prompt="And now?")
    check_server_calls(sendable(found.messages))
    assert "One." in str(found.messages)
