"""What a client sends as one JSON-RPC message, over stdio or HTTP, or what is wrong with it.

The SDK loses the id of a request that it cannot read, which would wait for ever, and names its own types.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import mcp_types as types

from subagent_server.run.errors import shorten

_LARGEST_ID = 1 << 63
_MOST_DIGITS = 1_000
_MOST_OF_A_PLACE = 200
HALF_CHARACTER = "holds half a character (a lone surrogate such as \\ud800): send whole characters"


@dataclass(frozen=True)
class BadMessage:
    """Something that is not a message: what is wrong with it, and which request waits for an answer."""

    why: str
    code: int = types.INVALID_REQUEST
    request_id: int | str | None = None
    gets_answer: bool = True


def has_no_answer_yet(number: int | str) -> BadMessage:
    """Return what is wrong with a request that has the id of another, which is being worked on."""
    return BadMessage(
        f"the request with the id {shorten(str(number))} has no answer yet: give each one of its own"
    )


def read_message(data: bytes) -> types.JSONRPCMessage | BadMessage | None:
    """Return the message in a line or a body, or what is wrong with it; None if it is empty."""
    text = data.decode("utf-8", "replace")
    try:
        message = types.jsonrpc_message_adapter.validate_json(text, by_name=False)
        is_notification = isinstance(message, types.JSONRPCNotification)
        # A request whose id is null would be taken for a notification. Few messages need the second reading.
        if not (is_notification and '"id"' in text and "id" in json.loads(text)):
            return message
    except ValueError:
        pass
    return _judged(text) if text.strip() else None


def _judged(text: str) -> BadMessage:
    try:
        found = json.loads(
            text, parse_int=lambda digits: int(digits) if len(digits) <= _MOST_DIGITS else 1e999
        )
    except (ValueError, RecursionError):
        return BadMessage(
            "this is not JSON, or is nested too deeply: send JSON-RPC messages, one by one",
            types.PARSE_ERROR,
        )
    if not isinstance(found, dict):
        return BadMessage(
            "this is not a JSON-RPC message: send objects, one by one; batches (without initialize, at most "
            "100 messages) are for the version 2025-03-26 alone"
        )
    if "method" not in found and ("result" in found or "error" in found):
        return BadMessage(f"an answer to this server is not valid: {_why(found)}", gets_answer=False)
    if "id" not in found and isinstance(found.get("method"), str):
        return BadMessage(f"a notification is not valid: {_why(found, needs_id=False)}", gets_answer=False)
    number = found.get("id")
    return BadMessage(_why(found), request_id=number if _is_id(number) else None)


def _is_id(number: object) -> bool:
    if isinstance(number, str):
        return not is_broken(number)
    return isinstance(number, int) and not isinstance(number, bool) and abs(number) < _LARGEST_ID


def _why(found: dict[str, Any], *, needs_id: bool = True) -> str:
    if needs_id and not _is_id(found.get("id")):
        return "id is neither text nor a whole number: give each request one of its own"
    if found.get("jsonrpc") != "2.0":
        return 'jsonrpc is not "2.0": send JSON-RPC 2.0'
    if not isinstance(found.get("method", ""), str) or not found.keys() & {"method", "result", "error"}:
        return "method is not text: name what is asked for"
    if not isinstance(found.get("params", {}), dict | None):
        return "params is not an object: send the arguments by name"
    path = next(_broken_texts(found), None)
    if path is not None:
        return f"{path[:_MOST_OF_A_PLACE]} {HALF_CHARACTER}"
    return "the message holds a number that is too large, or is nested too deeply: make it simpler"


def _broken_texts(found: dict[str, Any]) -> Iterator[str]:
    """Yield the paths of texts, and of the objects with names, of which a part is missing.

    Paths are cut as they grow: each part of a large list would hold a copy of the long name of that list.
    """
    pending: list[tuple[str, Any]] = [("", found)]  # no recursion: it may be nested deeply
    while pending:
        path, value = pending.pop()
        if isinstance(value, str) and is_broken(value):
            yield path
        elif isinstance(value, list):
            pending += [(f"{path}[{number}]"[:_MOST_OF_A_PLACE], each) for number, each in enumerate(value)]
        elif isinstance(value, dict):
            if any(map(is_broken, value)):
                yield f"a name in {path or 'the message'}"
            pending += [
                (f"{path}.{name}".lstrip(".")[:_MOST_OF_A_PLACE], each) for name, each in value.items()
            ]


def is_broken(text: str) -> bool:
    """Whether a text holds half a character, which can be neither stored nor sent."""
    return not text.isascii() and any("\ud800" <= each <= "\udfff" for each in text)
