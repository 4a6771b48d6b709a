"""Every call has its result and every result its call: the rule of the Messages API that loops break most."""

from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from subagent_server.simulator.errors import ApiError, refuse
from subagent_server.simulator.request_view import blocks_of


@dataclass
class _Turn:
    """Messages of one role that follow each other, which the API joins: its blocks with their paths."""

    role: str
    place: str
    blocks: list[tuple[str, dict[str, Any]]] = field(default_factory=list)


def check_calls(messages: list[dict[str, Any]]) -> None:
    """Check that the next user turn begins with a result for every call, and has no other results.

    Raises:
        ApiError: 400, naming the ids.
    """
    seen: set[str] = set()
    waiting: list[str] = []
    asked = ""
    for turn in joined_turns(messages):
        if turn.role == "user":
            _check_results(turn, waiting, asked)
            waiting = []
        else:
            waiting, asked = _new_calls(turn, seen), turn.place
    if waiting:
        raise _unanswered(asked, waiting)


def joined_turns(messages: list[dict[str, Any]]) -> list[_Turn]:
    """Return the turns of a conversation, without system messages."""
    turns: list[_Turn] = []
    for number, message in enumerate(messages):
        if message["role"] == "system":
            continue
        if not turns or turns[-1].role != message["role"]:
            turns.append(_Turn(message["role"], f"messages.{number}"))
        for position, block in enumerate(blocks_of(message["content"])):
            turns[-1].blocks.append((f"messages.{number}.content.{position}", block))
    return turns


def _new_calls(turn: _Turn, seen: set[str]) -> list[str]:
    calls: list[str] = []
    for place, block in turn.blocks:
        if block["type"] == "tool_use":
            if block["id"] in seen:
                raise refuse(place, f"`tool_use` ids must be unique, and {block['id']} stands twice")
            seen.add(block["id"])
            calls.append(block["id"])
    return calls


def _check_results(turn: _Turn, waiting: list[str], asked: str) -> None:
    answered: set[str] = set()
    for place, block in turn.blocks:
        if block["type"] != "tool_result":
            continue
        call_id = block["tool_use_id"]
        if call_id not in waiting:
            raise refuse(
                place,
                f"unexpected `tool_use_id` found in `tool_result` blocks: {call_id}. "
                "Each one must answer a `tool_use` block of the message before.",
            )
        if call_id in answered:
            raise refuse(
                place, f"each `tool_use` has one result, and there are several `tool_result`: {call_id}"
            )
        answered.add(call_id)
    leading = takewhile(lambda item: item[1]["type"] == "tool_result", turn.blocks)
    in_time = {block["tool_use_id"] for _, block in leading}
    missing = [call_id for call_id in waiting if call_id not in in_time]
    if missing:
        raise _unanswered(asked, missing)


def _unanswered(place: str, call_ids: list[str]) -> ApiError:
    return refuse(
        place,
        f"`tool_use` ids were found without `tool_result` blocks immediately after: {', '.join(call_ids)}. "
        "The next message must begin with the result of each.",
    )
