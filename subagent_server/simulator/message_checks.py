"""The refusals of the Messages API for the messages of a request: their order and their blocks."""

import binascii
import re
from base64 import b64decode
from collections.abc import Mapping
from typing import Any

from subagent_server.simulator.call_checks import check_calls
from subagent_server.simulator.errors import ApiError, refuse
from subagent_server.simulator.request_view import blocks_of
from subagent_server.simulator.signatures import signature_of
from subagent_server.simulator.web_tools import (
    RESULTS,
    SERVER_CALL,
    check_citations,
    check_server_block,
    check_server_calls,
    is_continuation,
)

_CALL_ID = re.compile(r"[a-zA-Z0-9_-]+")
_ROLES = ("user", "assistant", "system")
_ONLY_IN = {
    "tool_result": "user",
    "image": "user",
    "document": "user",
    "tool_use": "assistant",
    "thinking": "assistant",
    "redacted_thinking": "assistant",
    SERVER_CALL: "assistant",
    **dict.fromkeys(RESULTS, "assistant"),
}
_IMAGES = ("image/jpeg", "image/png", "image/gif", "image/webp")


def check_messages(messages: Any, allow_prefill: bool, body: Mapping[str, Any] | None = None) -> None:
    """Check all messages of a request, of which `body` is the whole.

    Raises:
        ApiError: 400, with the path to the message or block and what is wrong there.
    """
    if not isinstance(messages, list):
        raise refuse("messages", "must be a list")
    if not messages:
        raise refuse("messages", "at least one message is required")
    for number, message in enumerate(messages):
        _check_message(message, number, is_last=number == len(messages) - 1)
    spoken = [message["role"] for message in messages if message["role"] != "system"]
    if spoken[:1] != ["user"]:
        raise refuse("messages", 'the first message must use the "user" role')
    check_calls(messages)
    check_server_calls(messages)
    if spoken[-1] == "assistant" and not (allow_prefill or (body and is_continuation(dict(body)))):
        raise ApiError(
            400, "This model does not take a prefilled answer: the conversation must end with a user message."
        )


def _check_message(message: Any, number: int, is_last: bool) -> None:
    place = f"messages.{number}"
    if not isinstance(message, dict):
        raise refuse(place, "must be an object")
    role = message.get("role")
    if role not in _ROLES:
        raise refuse(f"{place}.role", "must be 'user' or 'assistant'")
    content = message.get("content")
    if content is None:
        raise refuse(f"{place}.content", "Field required")
    if not isinstance(content, str | list):
        raise refuse(f"{place}.content", "must be a string or a list of blocks")
    if not content and not (role == "assistant" and is_last):
        raise refuse(place, "all messages but a last one of the assistant must have non-empty content")
    for position, block in enumerate(blocks_of(content) if content else []):
        _check_block(block, role, f"{place}.content.{position}")


def _check_block(block: Any, role: str, place: str) -> None:
    if not isinstance(block, dict) or not isinstance(block.get("type"), str):
        raise refuse(f"{place}.type", "Field required")
    kind = block["type"]
    if _ONLY_IN.get(kind, role) != role:
        raise refuse(place, f"`{kind}` blocks can only be in `{_ONLY_IN[kind]}` messages")
    if kind == "text":
        check_citations(block, role, place)
    check = _BLOCK_CHECKS.get(kind)
    if check is not None:
        check(block, place)


def _check_text(block: dict[str, Any], place: str) -> None:
    _check_any_text(block, place)
    if not block["text"].strip():
        raise refuse("messages", f"text content blocks must contain non-whitespace text ({place})")


def _check_any_text(block: dict[str, Any], place: str) -> None:
    if not isinstance(block.get("text"), str):
        raise refuse(f"{place}.text.text", "must be a string")
    if not block["text"]:
        raise refuse("messages", f"text content blocks must be non-empty ({place})")


def _check_thinking(block: dict[str, Any], place: str) -> None:
    for key in ("thinking", "signature"):
        if not isinstance(block.get(key), str):
            raise refuse(f"{place}.thinking.{key}", "Field required")
    if "cache_control" in block:
        raise refuse(f"{place}.thinking.cache_control", "Extra inputs are not permitted")
    if block["signature"] != signature_of(block["thinking"]):
        raise refuse(place, "Invalid `signature` in `thinking` block: pass it back as it came")


def _check_tool_use(block: dict[str, Any], place: str) -> None:
    call_id = block.get("id")
    if not isinstance(call_id, str) or not _CALL_ID.fullmatch(call_id):
        raise refuse(f"{place}.tool_use.id", f"must match '^{_CALL_ID.pattern}$'")
    if not isinstance(block.get("name"), str) or not block["name"]:
        raise refuse(f"{place}.tool_use.name", "Field required")
    if not isinstance(block.get("input"), dict):
        raise refuse(f"{place}.tool_use.input", "must be an object")


def _check_tool_result(block: dict[str, Any], place: str) -> None:
    content, is_error = block.get("content"), block.get("is_error", False)
    if not isinstance(block.get("tool_use_id"), str):
        raise refuse(f"{place}.tool_result.tool_use_id", "Field required")
    if not isinstance(is_error, bool):
        raise refuse(f"{place}.tool_result.is_error", "must be true or false")
    if content is not None and not isinstance(content, str | list):
        raise refuse(f"{place}.tool_result.content", "must be a string or a list of blocks")
    if is_error and not content:
        raise refuse(f"{place}.tool_result", "content cannot be empty if `is_error` is true")
    for position, inner in enumerate(content if isinstance(content, list) else []):
        _check_result_part(inner, is_error, f"{place}.tool_result.content.{position}")


def _check_result_part(inner: Any, is_error: bool, place: str) -> None:
    if not isinstance(inner, dict) or not isinstance(inner.get("type"), str):
        raise refuse(f"{place}.type", "Field required")
    if is_error and inner["type"] != "text":
        raise refuse(place, "all content must be of type 'text' if `is_error` is true")
    if inner["type"] == "text":
        _check_any_text(inner, place)
    if inner["type"] in ("image", "document"):
        _check_attachment(inner, place)


def _check_attachment(block: dict[str, Any], place: str) -> None:
    kind, source = block["type"], block.get("source")
    if not isinstance(source, dict) or not isinstance(source.get("type"), str):
        raise refuse(f"{place}.{kind}.source", "Field required")
    if source["type"] != "base64":
        return
    allowed = _IMAGES if kind == "image" else ("application/pdf",)
    if source.get("media_type") not in allowed:
        raise refuse(f"{place}.{kind}.source.base64.media_type", f"must be one of {', '.join(allowed)}")
    try:
        b64decode(source.get("data") or "-", validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise refuse(f"{place}.{kind}.source.base64.data", "is not valid base64") from error


_BLOCK_CHECKS = {
    "text": _check_text,
    "thinking": _check_thinking,
    "tool_use": _check_tool_use,
    "tool_result": _check_tool_result,
    "image": _check_attachment,
    "document": _check_attachment,
    SERVER_CALL: check_server_block,
    **dict.fromkeys(RESULTS, check_server_block),
}
