"""Arguments that Python reads and JSON cannot hold, or that are nested too deep to be handled."""

from typing import Any

import pytest
from anthropic.types import RawMessageStreamEvent
from pydantic import TypeAdapter

from subagent_server.runners.messages.reply import ModelReply, ReplyBuilder

_EVENT: TypeAdapter[RawMessageStreamEvent] = TypeAdapter(RawMessageStreamEvent)


def called_with(arguments: str) -> ModelReply:
    """Return the reply of a model that calls a tool with this text as its arguments."""
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
