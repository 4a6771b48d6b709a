"""Replies put together from their events, and arguments that cannot be handled."""

from typing import Any

import pytest
from anthropic.types import RawMessageStreamEvent
from pydantic import TypeAdapter

from subagent_server.loop.model import ModelReply, ReplyBuilder
from subagent_server.run.errors import RunRefused

_EVENT: TypeAdapter[RawMessageStreamEvent] = TypeAdapter(RawMessageStreamEvent)


def called_with(arguments: str) -> ModelReply:
    builder = ReplyBuilder()
    block = {"type": "tool_use", "id": "toolu_1", "name": "echo", "input": {}}
    events: list[dict[str, Any]] = [
        {"type": "content_block_start", "index": 0, "content_block": block},
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "input_json_delta", "partial_json": arguments},
        },
        {"type": "content_block_stop", "index": 0},
        {"type": "message_stop"},
    ]
    for event in events:
        builder.take(_EVENT.validate_python(event))
    return builder.reply


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ('{"x": NaN}', "NaN is no number"),
        ('{"x": [-Infinity]}', "-Infinity is no number"),
        ('{"x": 1e999}', "1e999 is no number"),
        ('{"x": ' + "[" * 200 + "]" * 200 + "}", "100 deep"),
        ('{"x": ' + "[" * 100_000, "100 deep"),
        ('{"x": ' + "9" * 5_000 + "}", "not valid JSON"),
        ("[1]", "no JSON object"),
    ],
    ids=["nan", "infinity", "overflow", "deep", "deeper than the stack", "a number too long", "a list"],
)
def test_arguments_that_cannot_be_handled_become_an_error_and_are_not_sent_back(
    arguments: str, words: str
) -> None:
    reply = called_with(arguments)
    assert words in (reply.calls[0].problem or "") and reply.content[0]["input"] == {}


def test_arguments_as_deep_and_as_large_as_real_ones_are_taken() -> None:
    arguments = '{"x": ' + "[" * 50 + "1.5e300" + "]" * 50 + "}"
    assert called_with(arguments).calls[0].problem is None


def test_half_characters_are_joined_or_replaced_in_what_is_sent_back() -> None:
    """Gateways that count in UTF-16 cut texts in the middle of a character; models write half an escape."""
    builder = ReplyBuilder()
    texts = [{"type": "text_delta", "text": half} for half in ("a \ud83d", "\ude00 b \ud83d")]
    arguments = {"type": "input_json_delta", "partial_json": '{"x": ["\\ud83d"], "y": "\ud83d\ude00"}'}
    events: list[dict[str, Any]] = [
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in texts),
        {
            "type": "content_block_start",
            "index": 1,
            "content_block": {"type": "tool_use", "id": "", "name": "n\ud83d", "input": {}},
        },
        {"type": "content_block_delta", "index": 1, "delta": arguments},
        {"type": "message_stop"},
    ]
    for event in events:
        builder.take(_EVENT.validate_python(event))
    text, call = builder.reply.content
    assert text["text"] == "a \U0001f600 b \ufffd"
    assert call["input"] == {"x": ["\ufffd"], "y": "\U0001f600"} and call["name"] == "unknown"
    assert builder.reply.calls[0].arguments == {"x": ["\ud83d"], "y": "\U0001f600"}, (
        "tools judge it themselves"
    )
    assert call["id"] == builder.reply.calls[0].call_id != ""


def test_a_reply_has_a_bounded_number_of_blocks() -> None:
    builder = ReplyBuilder()
    block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "x"}}
    for _ in range(10_000):
        builder.take(_EVENT.validate_python(block))
    with pytest.raises(RunRefused, match="more than 10,000 blocks"):
        builder.take(_EVENT.validate_python(block))


class _CountingBlock(dict[str, Any]):
    """Counts the characters of the texts that it is given."""

    characters = 0

    def __setitem__(self, name: str, value: Any) -> None:
        self.characters += len(value) if isinstance(value, str) else 0
        super().__setitem__(name, value)


def test_a_text_is_put_together_once_in_however_many_pieces_it_comes() -> None:
    builder = ReplyBuilder()
    start = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    piece = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "piece "}}
    builder.take(_EVENT.validate_python(start))
    block = builder.reply.content[0] = _CountingBlock(builder.reply.content[0])
    for _ in range(1_000):
        builder.take(_EVENT.validate_python(piece))
    assert builder.reply.text == "piece " * 1_000
    assert block.characters == len(builder.reply.text)


def test_a_reply_can_be_read_between_its_pieces() -> None:
    builder = ReplyBuilder()
    start = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "One"}}
    builder.take(_EVENT.validate_python(start))
    for word in (" two", " three"):
        delta = {"type": "text_delta", "text": word}
        builder.take(_EVENT.validate_python({"type": "content_block_delta", "index": 0, "delta": delta}))
        assert builder.reply.text.endswith(word)
    assert builder.reply.text == "One two three"
