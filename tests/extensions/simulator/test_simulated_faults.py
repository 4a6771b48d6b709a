"""Every fault that a script can ask for, as a client sees it."""

import json
import time
from typing import Any

import anthropic
import httpx2
import pytest
from anthropic.types import Message

from subagent_server.extensions.simulator import Simulator
from tests.extensions.simulator.clients import KEY, LOCAL, ask, post


def said(message: Message) -> str:
    """Return the text of a one-block answer."""
    return str(message.content[0].to_dict()["text"])


@pytest.mark.parametrize(
    ("status", "kind", "error"),
    [
        (400, "invalid_request_error", anthropic.BadRequestError),
        (401, "authentication_error", anthropic.AuthenticationError),
        (418, "invalid_request_error", anthropic.APIStatusError),
        (429, "rate_limit_error", anthropic.RateLimitError),
        (503, "api_error", anthropic.InternalServerError),
        (529, "overloaded_error", anthropic.InternalServerError),
    ],
)
def test_a_status_is_answered_the_first_times_and_then_the_turn(
    status: int, kind: str, error: type[anthropic.APIStatusError]
) -> None:
    with Simulator({"turns": [{"text": "ok", "fault": {"status": status, "times": 2}}]}) as simulator:
        for _ in range(2):
            with pytest.raises(error) as caught:
                ask(simulator, "go")
            assert caught.value.status_code == status
            assert isinstance(caught.value.body, dict) and caught.value.body["error"]["type"] == kind
        assert said(ask(simulator, "go")) == "ok"
        assert [request.answer for request in simulator.requests] == ["turns[0] status"] * 2 + ["turns[0]"]


def test_a_status_carries_its_message_type_and_retry_after() -> None:
    fault = {"status": 429, "retry_after": 2.5, "error_type": "quota_error", "message": "Slow down."}
    with Simulator({"turns": [{"text": "ok", "fault": fault}]}) as simulator:
        response = post(simulator, stream=True)
    assert (response.status_code, response.headers["retry-after"]) == (429, "2.5")
    assert response.json()["error"] == {"type": "quota_error", "message": "Slow down."}
    assert response.json()["request_id"] == response.headers["request-id"]


@pytest.mark.parametrize("events", [1, 2, 4, 1000])
def test_a_cut_ends_the_connection_in_the_middle_of_the_stream(events: int) -> None:
    turn = {"text": "a long text that comes in pieces", "fault": {"cut_after": events, "times": 2}}
    with Simulator({"turns": [turn]}) as simulator:
        with pytest.raises((anthropic.APIConnectionError, httpx2.RemoteProtocolError)):
            ask(simulator, "go")
        received = b""
        messages = [{"role": "user", "content": "go"}]
        body = {"model": "m", "max_tokens": 9, "stream": True, "messages": messages}
        url = simulator.base_url + "/v1/messages"
        with (
            pytest.raises(httpx2.RemoteProtocolError, match="incomplete"),
            httpx2.stream("POST", url, json=body, headers=KEY, timeout=60, **LOCAL) as response,
        ):
            for piece in response.iter_bytes():
                received += piece
        assert received.count(b"\n\n") == min(events, 8)
        assert b"message_stop" not in received
        assert said(ask(simulator, "go")) == turn["text"]


def test_a_cut_after_0_events_ends_the_connection_before_any_byte() -> None:
    with Simulator({"turns": [{"text": "ok", "fault": {"cut_after": 0}}]}) as simulator:
        with pytest.raises(anthropic.APIConnectionError) as caught:
            ask(simulator, "go")
        assert "without sending a response" in repr(caught.value.__cause__)
        assert said(ask(simulator, "go")) == "ok"


def test_a_cut_of_an_answer_that_is_not_streamed_leaves_half_of_it() -> None:
    with Simulator({"turns": [{"text": "ok", "fault": {"cut_after": 3}}]}) as simulator:
        with pytest.raises(httpx2.RemoteProtocolError, match="without sending complete"):
            post(simulator)
        assert post(simulator).json()["content"][0]["text"] == "ok"


@pytest.mark.parametrize("after", [0, 3, 1000])
def test_a_stream_error_is_an_event_after_so_many_others(after: int) -> None:
    fault = {"stream_error": "overloaded_error", "after": after, "message": "Busy.", "times": 2}
    with Simulator({"turns": [{"text": "ok", "fault": fault}]}) as simulator:
        with pytest.raises(anthropic.APIStatusError, match="overloaded_error") as caught:
            ask(simulator, "go")
        assert caught.value.status_code in (200, 529)
        response = post(simulator, messages=[{"role": "user", "content": "go"}], stream=True)
        last = response.text.strip().split("\n\n")[-1]
        assert last.startswith("event: error\n") and '"Busy."' in last
        assert response.text.count("\n\n") == min(after, 7) + 1
        assert said(ask(simulator, "go")) == "ok"


def test_a_stream_error_of_an_answer_that_is_not_streamed_is_its_status() -> None:
    fault = {"stream_error": "overloaded_error"}
    with Simulator({"turns": [{"text": "ok", "fault": fault}]}) as simulator:
        assert post(simulator).status_code == 529
        assert post(simulator).status_code == 200


@pytest.mark.parametrize("fault", [True, "truncated", "garbled"])
@pytest.mark.parametrize("arguments", [{}, {"command": "ls"}])
def test_malformed_tool_input_does_not_parse(fault: object, arguments: dict[str, Any]) -> None:
    turn = {
        "tool_use": {"name": "bash", "input": arguments},
        "fault": {"malformed_tool_json": fault, "times": 2},
    }
    with Simulator({"turns": [turn]}) as simulator:
        text = post(simulator, stream=True).text
        data = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
        sent = "".join(e["delta"]["partial_json"] for e in data if e["type"] == "content_block_delta")
        with pytest.raises(ValueError, match=r"Expecting|Unterminated"):
            json.loads(sent)
        assert isinstance(post(simulator).json()["content"][0]["input"], str)
        assert ask(simulator, "hi").content[0].to_dict()["input"] == arguments


def test_a_hanging_request_is_never_answered_and_does_not_hold_up_others() -> None:
    with Simulator({"turns": [{"text": "ok", "fault": {"hang": True}}]}) as simulator:
        for streaming in (True, False):
            prompt = [{"role": "user", "content": str(streaming)}]
            with pytest.raises(httpx2.ReadTimeout):
                post(simulator, stream=streaming, messages=prompt, timeout=0.3)
            assert post(simulator, messages=prompt).status_code == 200


def test_faults_in_a_list_come_one_after_the_other() -> None:
    faults = [{"status": 429, "times": 2}, {"status": 500}, {"stream_error": "api_error"}]
    with Simulator({"turns": [{"text": "ok", "fault": faults}]}) as simulator:
        assert [post(simulator).status_code for _ in range(6)] == [429, 429, 500, 500, 200, 200]
        assert simulator.requests[3].answer == "turns[0] stream_error"
    with Simulator({"turns": [{"fault": {"status": 500, "times": "always"}}]}) as simulator:
        assert {post(simulator).status_code for _ in range(5)} == {500}


def test_faults_are_counted_for_each_conversation_and_each_turn() -> None:
    turn = {"text": "ok", "fault": {"status": 529}, "repeat": 2}
    first, other = ([{"role": "user", "content": text}] for text in ("one", "two"))
    later = [*first, {"role": "assistant", "content": "ok"}, {"role": "user", "content": "more"}]
    with Simulator({"turns": [turn]}) as simulator:
        for messages in (first, other, later):
            assert [post(simulator, messages=messages).status_code for _ in range(2)] == [529, 200]
        assert [post(simulator, messages=first, system="s").status_code for _ in range(2)] == [529, 200]


def test_a_moved_cache_mark_is_the_same_conversation() -> None:
    marked = [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]
    with Simulator({"turns": [{"text": "ok", "fault": {"status": 529}}]}) as simulator:
        assert post(simulator).status_code == 529
        assert post(simulator, messages=[{"role": "user", "content": marked}]).status_code == 200


def test_a_refused_request_uses_up_no_fault() -> None:
    with Simulator({"turns": [{"text": "ok", "fault": {"status": 529}}]}) as simulator:
        assert [post(simulator, headers={}).status_code, post(simulator).status_code] == [401, 529]


def test_an_open_stream_ends_with_the_simulator() -> None:
    started = time.monotonic()
    simulator = Simulator({"turns": [{"text": "x" * 100, "latency": 3600}]})
    with simulator, pytest.raises(httpx2.ReadTimeout):
        post(simulator, stream=True, timeout=0.2)
    assert time.monotonic() - started < 60
