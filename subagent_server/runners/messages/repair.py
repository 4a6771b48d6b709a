"""Repairing a conversation: the messages that are left of it become one that the API takes.

Roles alternate, a user begins, every tool call has its result at the beginning of the message behind it, and
each result has its call. A gap that a kill, a full disk or a damaged file has left is filled with words that
say so. A reply that the API has paused is followed by its rest, without a word between.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from subagent_server.runners.messages.web_results import SERVER_CALL, is_server_result

Block = dict[str, Any]
Message = dict[str, Any]

STOP_REASON = "stopReason"
"""Why the model ended a message: kept in a transcript, never sent."""

_THOUGHTS = frozenset({"thinking", "redacted_thinking"})
_ONLY_FROM_USERS = frozenset({"tool_result", "image", "document"})
_ONLY_FROM_MODELS = frozenset({"tool_use", SERVER_CALL, *_THOUGHTS})
_PAUSED = "pause_turn"
_GAP = {"type": "text", "text": "(What was said here is lost. Go on.)"}


def repaired(
    messages: Iterable[Message],
    first: Sequence[Block],
    answer: Callable[[Block], Block],
    *,
    keep_thoughts: bool = True,
) -> list[Message]:
    """Return the whole conversation of which `messages` are left.

    `first` are the blocks of the task, for a conversation whose beginning is lost; `answer` gives the result
    block of a call without one. Without `keep_thoughts` they are left out: another model cannot take them.
    """
    repair = _Repair(first, answer, keep_thoughts)
    before: Message | None = None
    for message in messages:
        if message != before:  # a disk may refuse a line that it has taken
            repair.add(message)
        before = message
    return repair.closed()


def calls_of(message: Message) -> list[Block]:
    """Return the tool calls of a message."""
    return [block for block in message["content"] if block["type"] == "tool_use"]


def is_paused(message: Message) -> bool:
    """Whether the API has paused a reply, to be carried on without a word between."""
    paused = message.get("role") == "assistant" and message.get(STOP_REASON) == _PAUSED
    return paused and not calls_of(message)


def sendable(messages: Iterable[Message]) -> list[Message]:
    """Return the messages as the API takes them, without the fields that are only for the transcript."""
    return [{"role": message["role"], "content": message["content"]} for message in messages]


class _Repair:
    """The conversation so far, always valid but for calls of its last message that have no results yet."""

    def __init__(self, first: Sequence[Block], answer: Callable[[Block], Block], keep_thoughts: bool) -> None:
        self._first = first
        self._answer = answer
        self._dropped = frozenset() if keep_thoughts else _THOUGHTS
        self._seen: set[str] = set()
        self._whole: list[Message] = []

    def add(self, message: Message) -> None:
        """Add the usable part of a message."""
        if message.get("role") == "assistant":
            self._add_reply(message)
        elif message.get("role") == "user":
            self._add_words(message)

    def closed(self) -> list[Message]:
        """Return the conversation with every call answered."""
        if not self._whole:
            self._begin()
        if self._last_calls():
            self._whole.append({"role": "user", "content": self._results([])})
        return self._whole

    def _add_reply(self, message: Message) -> None:
        goes_on = bool(self._whole) and is_paused(self._whole[-1])
        content = [b for b in self._usable(message, _ONLY_FROM_USERS) if self._is_new(b)]
        while content and content[-1]["type"] in _THOUGHTS:
            content.pop()  # a message may not end with a thought
        if not content:
            return
        if not self._whole:
            self._begin()
        if self._whole[-1]["role"] == "assistant" and not goes_on:
            gap = self._results([]) if self._last_calls() else [_GAP]
            self._whole.append({"role": "user", "content": gap})
        kept = {STOP_REASON: message[STOP_REASON]} if isinstance(message.get(STOP_REASON), str) else {}
        self._whole.append({"role": "assistant", "content": content, **kept})

    def _add_words(self, message: Message) -> None:
        content = [b for b in self._usable(message, _ONLY_FROM_MODELS) if not is_server_result(b)]
        given = [block for block in content if block["type"] == "tool_result"]
        words = [block for block in content if block["type"] != "tool_result"]
        if self._whole and self._whole[-1]["role"] == "user":
            self._whole[-1]["content"] += words
            return
        results = self._results(given) if self._last_calls() else []
        if results or words:
            self._whole.append({"role": "user", "content": [*results, *words]})

    def _results(self, given: list[Block]) -> list[Block]:
        by_id = {block["tool_use_id"]: block for block in given}
        return [by_id.get(call["id"]) or self._answer(call) for call in self._last_calls()]

    def _last_calls(self) -> list[Block]:
        if not self._whole or self._whole[-1]["role"] != "assistant":
            return []
        return calls_of(self._whole[-1])

    def _begin(self) -> None:
        self._whole.append({"role": "user", "content": list(self._first) or [_GAP]})

    def _usable(self, message: Message, foreign: frozenset[str]) -> list[Block]:
        content = message.get("content")
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        blocks = content if isinstance(content, list) else []
        return [b for b in blocks if _is_sound(b) and b["type"] not in foreign | self._dropped]

    def _is_new(self, block: Block) -> bool:
        """Whether a call is seen for the first time: ids are unique in a conversation."""
        if block["type"] != "tool_use":
            return True
        is_new = block["id"] not in self._seen
        self._seen.add(block["id"])
        return is_new


def _is_sound(block: Any) -> bool:
    """Whether a block has the fields of its kind; blocks of new kinds pass."""
    if not isinstance(block, dict):
        return False
    match block.get("type"):
        case "text":
            return isinstance(block.get("text"), str) and bool(block["text"].strip())
        case "tool_use" | "server_tool_use":
            texts = (block.get("id"), block.get("name"))
            return all(isinstance(t, str) and t for t in texts) and isinstance(block.get("input"), dict)
        case "tool_result":
            return isinstance(block.get("tool_use_id"), str)
        case kind:
            return isinstance(kind, str) and (
                not is_server_result(block) or isinstance(block.get("tool_use_id"), str)
            )
