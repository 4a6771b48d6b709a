"""A request of the Messages API as scripts and answers look at it, and how many tokens it is."""

import base64
import hashlib
import json
from collections.abc import Iterator
from functools import cached_property
from typing import Any

ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""The error type of the Messages API for a status."""


class ApiError(Exception):
    """An answer that is an error of the Messages API: its status, type and message."""

    def __init__(
        self, status: int, message: str, error_type: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.error_type = error_type or error_type_of(status)
        self.retry_after = retry_after

    def body(self, request_id: str) -> dict[str, Any]:
        """Return the JSON body of the answer."""
        return error_body(self.error_type, self.message) | {"request_id": request_id}


def error_type_of(status: int) -> str:
    """Return the error type of any status from 400 to 599."""
    return ERROR_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")


def status_of(error_type: str) -> int:
    """Return the status that goes with an error type; 500 for one that is not in the table."""
    return next((status for status, name in ERROR_TYPES.items() if name == error_type), 500)


def error_body(error_type: str, message: str) -> dict[str, Any]:
    """Return an error as the API writes it, in a body or in the middle of a stream."""
    return {"type": "error", "error": {"type": error_type, "message": message}}


def refuse(path: str, why: str) -> ApiError:
    """Return the refusal of an invalid request: `path` is the way into the body, `why` what is wrong."""
    return ApiError(400, f"{path}: {why}")


def opaque(kind: str, *parts: Any) -> str:
    """Return a text that only the API could read, the same for the same parts."""
    text = "\0".join([f"simulated {kind}", *map(str, parts)])
    digest = hashlib.sha256(text.encode("utf-8", "replace")).digest()
    return base64.b64encode(digest * 3).decode("ascii")


def signature_of(thinking: str) -> str:
    """Return the signature of a thinking block."""
    return opaque("thinking", thinking)


# -- the request


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
        """The names of the tools in the request."""
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


# -- plausible token counts, from sizes alone: four characters are a token, an image or PDF is 1,600


_CHARACTERS_PER_TOKEN = 4
_ATTACHMENT = 1600 * _CHARACTERS_PER_TOKEN
_UNCOUNTED = frozenset({"cache_control", "signature"})

_OVERHEAD = 3
"""The tokens of a request that belong to no block."""


def output_tokens(content: list[dict[str, Any]]) -> int:
    """Return the estimated output tokens of an answer; never 0, as at the real API."""
    return max(1, tokens_of(characters(content)))


def input_tokens(request: dict[str, Any]) -> int:
    """Return the estimated input tokens of a Messages request."""
    parts = [*(request.get("tools") or []), *blocks_of(request.get("system"))]
    for message in request["messages"]:
        parts += blocks_of(message["content"])
    return tokens_of(characters(parts)) + _OVERHEAD


def tokens_of(size: int) -> int:
    """Return how many tokens so many characters are."""
    return size // _CHARACTERS_PER_TOKEN


def characters(value: Any) -> int:
    """Return how many characters count in a part of a request or an answer."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, list):
        return sum(characters(item) for item in value)
    if isinstance(value, dict):
        if value.get("type") in ("image", "document"):
            return _ATTACHMENT
        return sum(len(key) + characters(item) for key, item in value.items() if key not in _UNCOUNTED)
    return _CHARACTERS_PER_TOKEN
