"""Marking the prefix of a request for the prompt cache. The messages themselves stay without marks.

The API writes an entry at each mark, and from a mark looks back over 20 blocks at most for an entry to read.
One turn with many calls is longer than that. So besides the end of the request, which the API marks by itself
(`cache_control` of the whole request), the end of the request before is marked: there the entry is for sure.
A third mark closes the part that every run of an agent shares: its tools and its system prompt.
"""

from typing import Any

Block = dict[str, Any]
MARK: Block = {"type": "ephemeral"}
_UNMARKABLE = ("thinking", "redacted_thinking")


def marked(system: list[Block], tools: list[Block], messages: list[Block]) -> Block:
    """Return the parts of a request with their marks, three at most of the four that the API takes."""
    if tools and not any("cache_control" in block for block in system):
        tools = [*tools[:-1], tools[-1] | {"cache_control": MARK}]
    parts: Block = {"system": system, "messages": _marked_messages(messages), "cache_control": MARK}
    return parts | ({"tools": tools} if tools else {})


def _marked_messages(messages: list[Block]) -> list[Block]:
    """Return the messages with a mark at the end of the request before this one."""
    answers = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
    last = answers[-1] - 1 if answers else -1
    if last < 0:
        return messages
    return [*messages[:last], _marked_message(messages[last]), *messages[last + 1 :]]


def _marked_message(message: Block) -> Block:
    content = message["content"]
    if not isinstance(content, list):
        return message
    places = [n for n, block in enumerate(content) if block.get("type") not in _UNMARKABLE]
    if not places:
        return message
    place = places[-1]
    block = content[place] | {"cache_control": MARK}
    return message | {"content": [*content[:place], block, *content[place + 1 :]]}
