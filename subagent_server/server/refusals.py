"""Lines that are not messages: what is wrong with each, and the error for a sender that may wait for one."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import mcp_types as types

from subagent_server.server.lines import MAX_LINE_BYTES, LongLine

_NOT_JSON = "the line is not JSON, or is nested too deeply: send one JSON-RPC message on each line"
_NOT_ONE = "the line is not a JSON-RPC message: send one object on each line; batches are not taken"
_LARGEST_ID = 1 << 63
_MOST_DIGITS = 1_000
_ID = rb'"id"\s*:\s*("[^"\\]{0,200}"|-?[0-9]{1,19})\s*'
_VERSION = rb'"jsonrpc"\s*:\s*"2\.0"\s*'
_ID_AT_AN_END = (
    re.compile(rb"\s*\{\s*(?:%s,\s*)?%s," % (_VERSION, _ID)),
    re.compile(rb".*,\s*%s(?:,\s*%s)?\}\s*" % (_ID, _VERSION), re.DOTALL),
)
"""The id of a request as clients write it, at the beginning or at the end; no id of something inside fits."""


@dataclass(frozen=True)
class BadLine:
    """A line that is not a message. `answer` is the error to send, or None if nobody waits for one."""

    why: str
    answer: types.JSONRPCError | None

    @property
    def is_nameless(self) -> bool:
        """Whether no request learns of it: only the person who reads stderr can."""
        return self.answer is None or self.answer.id is None


def bad_line(line: bytes | LongLine) -> BadLine | None:
    """Return what is wrong with a line that is not a message, or None if the line is empty.

    The answer names the request if that has a readable id, and the value to blame if there is one.
    """
    if isinstance(line, LongLine):
        return _refused(_id_at_an_end(line), types.INVALID_REQUEST, _too_long(line))
    if not line.strip():
        return None
    try:
        said = json.loads(line.decode("utf-8", "replace"), parse_int=_whole_number)
    except (ValueError, RecursionError):
        return _refused(None, types.PARSE_ERROR, _NOT_JSON)
    if not isinstance(said, dict):
        return _refused(None, types.INVALID_REQUEST, _NOT_ONE)
    if "method" not in said and ("result" in said or "error" in said):
        return BadLine(f"an answer to this server is not valid: {_why(said)}.", None)
    if "id" not in said and isinstance(said.get("method"), str):
        return BadLine(f"a notification is not valid: {_why(said, needs_id=False)}.", None)
    number = said.get("id")
    return _refused(number if _is_id(number) else None, types.INVALID_REQUEST, _why(said))


def is_message(line: bytes) -> bool:
    """Whether a line is a message of the protocol."""
    text = line.decode("utf-8", "replace")
    try:
        message = types.jsonrpc_message_adapter.validate_json(text, by_name=False)
    except ValueError:
        return False
    return not is_request_in_disguise(message, text)


def _too_long(line: LongLine) -> str:
    return (
        f"the line has {line.size:,} of at most {MAX_LINE_BYTES:,} bytes: leave the material in a file, and "
        "name that"
    )


def _id_at_an_end(line: LongLine) -> int | str | None:
    first, last = _ID_AT_AN_END
    found = first.match(line.head) or last.fullmatch(line.tail)
    number = None if found is None else json.loads(found[1].decode("utf-8", "replace"))
    return number if _is_id(number) else None


def is_request_in_disguise(message: types.JSONRPCMessage, line: str) -> bool:
    """Whether a message is taken for a notification only because its id cannot be one."""
    return isinstance(message, types.JSONRPCNotification) and '"id"' in line and "id" in json.loads(line)


def _whole_number(digits: str) -> int | float:
    """Return a number, or infinity if it has more digits than Python reads."""
    return int(digits) if len(digits) <= _MOST_DIGITS else float(digits)


def _refused(number: int | str | None, code: int, why: str) -> BadLine:
    error = types.ErrorData(code=code, message=f"{why}.")
    return BadLine(error.message, types.JSONRPCError(jsonrpc="2.0", id=number, error=error))


def _is_id(number: object) -> bool:
    if isinstance(number, str):
        return not _is_broken(number)
    return isinstance(number, int) and not isinstance(number, bool) and abs(number) < _LARGEST_ID


def _why(said: dict[str, Any], *, needs_id: bool = True) -> str:
    if needs_id and not _is_id(said.get("id")):
        return "id is neither text nor a whole number: give each request one of its own"
    if said.get("jsonrpc") != "2.0":
        return 'jsonrpc is not "2.0": send JSON-RPC 2.0'
    if not isinstance(said.get("method", ""), str) or not said.keys() & {"method", "result", "error"}:
        return "method is not text: name what is asked for"
    if not isinstance(said.get("params", {}), dict | None):
        return "params is not an object: send the arguments by name"
    place = next(_broken_texts(said), None)
    if place is not None:
        return (
            f"{place[:200]} holds half a character (a lone surrogate such as \\ud800): send whole characters"
        )
    return "the message holds a number that is too large, or is nested too deeply: make it simpler"


def _broken_texts(said: dict[str, Any]) -> Iterator[str]:
    """Yield the places of texts, and the places that hold names, of which a part is missing."""
    pending: list[tuple[str, Any]] = [("", said)]
    while pending:
        place, value = pending.pop()
        if isinstance(value, str) and _is_broken(value):
            yield place
        elif isinstance(value, list):
            pending += [(f"{place}[{number}]", each) for number, each in enumerate(value)]
        elif isinstance(value, dict):
            if any(map(_is_broken, value)):
                yield f"a name in {place or 'the message'}"
            pending += [(f"{place}.{name}".lstrip("."), each) for name, each in value.items()]


def _is_broken(text: str) -> bool:
    return not text.isascii() and any("\ud800" <= each <= "\udfff" for each in text)
