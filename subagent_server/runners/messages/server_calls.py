"""The calls that the API makes itself, in a conversation that is carried on.

A call is kept with its result, or left out. Two kinds of calls may lack a result: a call in a reply that the
API has paused, which is answered where the reply goes on; and a call beside calls of the agent's own tools,
which is answered in the next reply. The API refuses any other call without a result, and a result without its
call.
"""

from collections.abc import Sequence
from typing import Any

from subagent_server.runners.messages.repair import Block, Message, calls_of
from subagent_server.runners.messages.web_results import SERVER_CALL, calls_without_result, is_server_result

_LEFT_OUT = {"type": "text", "text": "(A search of the web was cut here.)"}


def without_cut_calls(messages: Sequence[Message]) -> list[Message]:
    """Return the conversation without calls of the API that were cut, and without results of lost ones."""
    open_calls: set[Any] = set()
    whole: list[Message] = []
    for number, message in enumerate(messages):
        if message["role"] != "assistant":
            whole.append(message)
            continue
        content = _answering(message["content"], open_calls)
        waiting = {call["id"] for call in calls_without_result(content)}
        if not _may_wait(messages, number):
            content = [b for b in content if not (b["type"] == SERVER_CALL and b["id"] in waiting)]
            waiting = set()
        open_calls = waiting
        whole.append(
            message if content == message["content"] else {**message, "content": content or [_LEFT_OUT]}
        )
    return whole


def _answering(content: list[Block], open_calls: set[Any]) -> list[Block]:
    """Return the blocks of a reply, of the results only those whose call stands open before them."""
    known = set(open_calls)
    kept: list[Block] = []
    for block in content:
        if block["type"] == SERVER_CALL:
            known.add(block["id"])
        elif is_server_result(block):
            if block["tool_use_id"] not in known:
                continue
            known.remove(block["tool_use_id"])
        kept.append(block)
    return kept


def _may_wait(messages: Sequence[Message], number: int) -> bool:
    """Whether calls without results may stand in this reply: it goes on, or calls the agent's own tools."""
    after = messages[number + 1 : number + 2]
    return bool(calls_of(messages[number])) or not after or after[0]["role"] == "assistant"
