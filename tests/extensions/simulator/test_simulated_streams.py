"""What a turn looks like on the wire."""

import asyncio
import json
from typing import Any

import httpx2
import pytest
from anthropic.types import TextBlock, ThinkingBlock, ToolUseBlock

from subagent_server.extensions.simulator import Simulator
from tests.extensions.simulator.clients import ask, client_of, post


def events(response: httpx2.Response) -> list[dict[str, Any]]:
    """Return the events of a stream, after checking the name of each."""
    found = []
    for part in response.content.decode("utf-8").split("\n\n")[:-1]:
        name, data = part.split("\n", 1)
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        found.append(event)
    return found


def fragments(response: httpx2.Response, index: int = 0) -> list[str]:
    """Return the pieces of tool input of one block."""
    deltas = [
        e["delta"] for e in events(response) if e["type"] == "content_block_delta" and e["index"] == index
    ]
    return [delta["partial_json"] for delta in deltas]


def test_a_stream_has_the_events_of_the_messages_api_in_their_order() -> None:
    with Simulator({"turns": [{"thinking": "So.", "text": "Hi."}]}) as simulator:
        response = post(simulator, path="/v1/messages?beta=true", stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["request-id"].startswith("req_")
    kinds = [e["type"] for e in events(response)]
    thinking, text = kinds.index("content_block_stop"), len(kinds) - 3
    assert kinds[:3] == ["message_start", "content_block_start", "ping"]
    assert set(kinds[3:thinking]) == {"content_block_delta"}
    assert kinds[thinking : thinking + 2] == ["content_block_stop", "content_block_start"]
    assert kinds[text:] == ["content_block_stop", "message_delta", "message_stop"]
    start, end = events(response)[0]["message"], events(response)[-2]
    assert (start["content"], start["stop_reason"], start["usage"]["output_tokens"]) == ([], None, 1)
    assert (end["delta"]["stop_reason"], end["usage"]["output_tokens"] > 1) == ("end_turn", True)


def test_the_real_client_gets_thinking_text_and_both_calls_of_one_turn() -> None:
    calls: list[dict[str, Any]] = [
        {"name": "bash", "input": {"command": "ls -l", "deep": [1, {"a": None}]}},
        {"name": "now"},
    ]
    with Simulator({"turns": [{"thinking": "Hmm.", "text": "I look.", "tool_use": calls}]}) as simulator:
        message = ask(simulator, "go")
    thinking, text, first, second = message.content
    assert isinstance(thinking, ThinkingBlock) and thinking.thinking == "Hmm." and thinking.signature
    assert isinstance(text, TextBlock) and text.text == "I look."
    assert isinstance(first, ToolUseBlock) and (first.name, first.input) == ("bash", calls[0]["input"])
    assert isinstance(second, ToolUseBlock) and (second.name, second.input) == ("now", {})
    assert first.id != second.id
    assert (message.stop_reason, message.model) == ("tool_use", "claude-test")


def test_tool_input_comes_in_several_fragments_that_join_to_its_json() -> None:
    turn = {"tool_use": {"name": "bash", "input": {"command": "echo one two three"}}}
    with Simulator({"turns": [turn]}) as simulator:
        pieces = fragments(post(simulator, stream=True))
    assert pieces[0] == "" and len(pieces) > 3
    assert json.loads("".join(pieces)) == {"command": "echo one two three"}
    with Simulator({"turns": [{"tool_use": [{"name": "now"}]}]}) as simulator:
        assert fragments(post(simulator, stream=True)) == [""]


def test_an_answer_that_is_not_streamed_is_the_same_message() -> None:
    turn = {"thinking": "So.", "text": "Hi.", "tool_use": {"name": "bash", "input": {"command": "ls"}}}
    with Simulator({"turns": [turn]}) as simulator:
        whole = post(simulator, model="claude-test").json()
        streamed: dict[str, Any] = ask(simulator, "hi").to_dict()
    for message in (whole, streamed):
        message.pop("id")
        for block in message["content"]:
            block.pop("parsed_output", None)
    assert {key: streamed[key] for key in whole} == whole


def test_content_keeps_its_order_and_knows_blocks_by_their_keys() -> None:
    content = [
        {"text": "a"},
        {"name": "bash"},
        {"type": "text", "text": "b"},
        {"data": "x"},
        {"thinking": "c"},
    ]
    with Simulator({"turns": [{"content": content}]}) as simulator:
        kinds = [block["type"] for block in post(simulator).json()["content"]]
    assert kinds == ["text", "tool_use", "text", "redacted_thinking", "thinking"]


@pytest.mark.parametrize("text", ["a\u2028b\x85c\r\nd", "naïve 👩‍👩‍👧 漢字 \x00", " ", 'quote " and \\ back'])
def test_any_text_arrives_as_it_was_written(text: str) -> None:
    turn = {"text": text, "thinking": text, "tool_use": {"name": "bash", "input": {"a": text}}}
    with Simulator({"turns": [turn | {"chunk_size": 1}]}) as simulator:
        thinking, said, call = ask(simulator, "go").content
    assert isinstance(thinking, ThinkingBlock) and thinking.thinking == text
    assert isinstance(said, TextBlock) and said.text == text
    assert isinstance(call, ToolUseBlock) and call.input == {"a": text}


def test_omitted_thinking_has_a_signature_and_no_text() -> None:
    with Simulator({"turns": [{"thinking": "Secret.", "text": "Hi."}]}) as simulator:
        thinking = ask(simulator, "go", thinking={"type": "adaptive", "display": "omitted"}).content[0]
    assert isinstance(thinking, ThinkingBlock) and thinking.thinking == "" and thinking.signature


def test_stop_reason_and_usage_are_as_the_script_says() -> None:
    usage = {"input_tokens": 7, "output_tokens": 0, "cache_read_input_tokens": 9}
    with Simulator({"turns": [{"text": "I", "stop_reason": "max_tokens", "usage": usage}]}) as simulator:
        message = ask(simulator, "go")
    counted = (message.usage.input_tokens, message.usage.output_tokens, message.usage.cache_read_input_tokens)
    assert (message.stop_reason, counted) == ("max_tokens", (7, 0, 9))


def test_a_refusal_and_a_stop_sequence_carry_their_details() -> None:
    turns = [
        {"stop_reason": "refusal"},
        {"text": "x", "stop_reason": "stop_sequence", "stop_sequence": "END"},
    ]
    with Simulator(
        {"rules": [{"when": {"prompt": str(n)}} | turn for n, turn in enumerate(turns)]}
    ) as simulator:
        refusal, stopped = ask(simulator, "0"), ask(simulator, "1")
    assert refusal.content == [] and refusal.stop_details is not None
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "END")


def test_tokens_are_counted_without_a_limit_on_the_answer() -> None:
    async def count(simulator: Simulator, text: str) -> int:
        async with client_of(simulator, max_retries=0) as client:
            counted = await client.messages.count_tokens(
                model="m", messages=[{"role": "user", "content": text}]
            )
            return counted.input_tokens

    with Simulator({"turns": [{"text": "x"}]}) as simulator:
        short, long = (asyncio.run(count(simulator, text)) for text in ("hi", "word " * 1000))
    assert 0 < short < 20 < 1000 < long < 2000


def test_max_tokens_0_only_warms_the_cache() -> None:
    with Simulator({"turns": [{"text": "x"}]}) as simulator:
        message = post(simulator, max_tokens=0).json()
    assert (message["content"], message["stop_reason"]) == ([], "max_tokens")


def test_events_are_sent_when_they_are_due_and_not_at_the_end() -> None:
    """The first piece is there although the second is an hour away."""
    turn = {"text": "ab", "chunk_size": 1, "chunk_delay": 3600}

    async def first_text(simulator: Simulator) -> str:
        async with client_of(simulator, max_retries=0) as client:
            asked = [{"role": "user", "content": "go"}]
            async with client.messages.stream(model="m", max_tokens=9, messages=asked) as stream:  # type: ignore[arg-type]
                return await asyncio.wait_for(anext(aiter(stream.text_stream)), 10)

    with Simulator({"turns": [turn]}) as simulator:
        assert asyncio.run(first_text(simulator)) == "a"
