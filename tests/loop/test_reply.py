"""Replies put together from their events, and arguments that cannot be handled."""

from typing import Any

import pytest
from anthropic.types import RawMessageStreamEvent
from pydantic import TypeAdapter

from subagent_server.loop.model import ModelReply, ReplyBuilder

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
