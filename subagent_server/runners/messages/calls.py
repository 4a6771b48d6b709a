"""The calls of one turn, made fit to be run: unique ids, no call that was cut, not too many.

A fault of a call becomes its `problem`, which the model reads instead of a result.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from subagent_server.runners.messages.reply import ModelReply, ToolCall

MOST_CALLS = 1_000
"""How many calls of one turn are run; the others are refused."""
MOST_AT_ONCE = 64
"""How many calls of one turn run at the same time; the others wait for their turn."""

TURN_CHARACTERS = 600_000
"""How much text all results of a turn may have together: the model has to read it in one piece."""
RESULT_CHARACTERS = 60_000
"""More than any built-in tool returns, so that no result is cut twice."""
LEAST_CHARACTERS = 500

_CUT = "The reply was cut in the middle of this call, so it was not run: send it again, in smaller pieces."
_TOO_MANY = f"Not run: one turn may have {MOST_CALLS:,} calls. Make fewer at a time."


def normalise(reply: ModelReply, messages: Sequence[dict[str, Any]]) -> None:
    """Make `reply` fit for the conversation: unique ids, and a `problem` for each call that may not run."""
    _make_unique(reply, _ids(messages))
    last = reply.content[-1] if reply.content else {}
    if reply.stop_reason == "max_tokens" and last.get("type") == "tool_use":
        reply.calls[-1] = replace(reply.calls[-1], problem=_CUT)
    reply.calls[MOST_CALLS:] = [replace(call, problem=_TOO_MANY) for call in reply.calls[MOST_CALLS:]]


def room_of_each(calls: Sequence[ToolCall]) -> int:
    """Return how many characters each result of a turn may have."""
    return max(LEAST_CHARACTERS, min(RESULT_CHARACTERS, TURN_CHARACTERS // max(1, len(calls))))


def _ids(messages: Sequence[dict[str, Any]]) -> Counter[str]:
    return Counter(
        block["id"]
        for message in messages
        if message["role"] == "assistant" and isinstance(message["content"], list)
        for block in message["content"]
        if block.get("type") == "tool_use"
    )


def _make_unique(reply: ModelReply, seen: Counter[str]) -> None:
    """Give each call an id of its own. Blocks and calls of a reply stand in the same order."""
    blocks = [block for block in reply.content if block.get("type") == "tool_use"]
    for number, (block, call) in enumerate(zip(blocks, reply.calls, strict=True)):
        name = call.call_id
        while seen[name]:
            name = f"{call.call_id}_{seen[call.call_id] + 1}"
            seen[call.call_id] += 1
        seen[name] += 1
        if name != call.call_id:
            block["id"] = name
            reply.calls[number] = replace(call, call_id=name)
