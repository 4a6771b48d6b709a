"""A valid Messages request for scripts to look at. Nothing here remembers an earlier request."""

import hashlib
import json
from collections.abc import Iterator
from functools import cached_property
from typing import Any

Message = dict[str, Any]


def blocks_of(content: Any) -> list[dict[str, Any]]:
    """Return message or system content as a list of blocks: a string is one block of text."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return content or []


def texts_of(content: Any) -> Iterator[str]:
    """Yield the texts of `content` in order, those inside tool results among them."""
    for block in blocks_of(content):
        if block.get("type") == "text":
            yield block["text"]
        elif block.get("type") == "tool_result":
            yield from texts_of(block.get("content"))


class RequestView:
    """A Messages request that has passed the checks, with a name for each fact that scripts ask for."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.body = body
        self.messages: list[Message] = body["messages"]
        self.model: str = body["model"]

    @cached_property
    def turn(self) -> int:
        """The number of the turn that is asked for, from 0: one for each assistant message before it."""
        return sum(message["role"] == "assistant" for message in self.messages)

    @cached_property
    def system(self) -> str:
        """The system prompt as one text."""
        return "\n".join(texts_of(self.body.get("system")))

    @cached_property
    def prompt(self) -> str:
        """The text of the first user message."""
        return "\n".join(texts_of(self._user_messages[0]["content"])) if self._user_messages else ""

    @cached_property
    def last(self) -> str:
        """The text of the last user message, tool results included."""
        return "\n".join(texts_of(self._user_messages[-1]["content"])) if self._user_messages else ""

    @property
    def has_tool_error(self) -> bool:
        """Whether the last user message holds a tool result that is an error."""
        last = self._user_messages[-1]["content"] if self._user_messages else None
        return any(block.get("is_error") is True for block in blocks_of(last))

    @property
    def tools(self) -> set[str]:
        """The names of the tools that are offered."""
        return {tool["name"] for tool in self.body.get("tools") or [] if "name" in tool}

    @cached_property
    def tool_use_ids(self) -> set[str]:
        """The ids of the calls that the conversation already holds."""
        return {
            block["id"]
            for message in self.messages
            for block in blocks_of(message["content"])
            if block.get("type") == "tool_use"
        }

    def newest_texts(self) -> Iterator[str]:
        """Yield the texts of user messages and tool results, the newest first."""
        for message in reversed(self._user_messages):
            yield from reversed(list(texts_of(message["content"])))

    @cached_property
    def conversation(self) -> str:
        """The identity of the conversation: a hash of the system prompt and the first user message.

        Cache marks do not count, and text is the same as one block of text: clients move and rewrite both.
        """
        first = blocks_of(self._user_messages[0]["content"]) if self._user_messages else []
        plain = [{key: value for key, value in block.items() if key != "cache_control"} for block in first]
        identity = json.dumps([self.system, plain], sort_keys=True)
        return hashlib.sha256(identity.encode("utf-8")).hexdigest()

    @cached_property
    def _user_messages(self) -> list[Message]:
        return [message for message in self.messages if message["role"] == "user"]
