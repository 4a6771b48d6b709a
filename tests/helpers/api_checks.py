"""The refusals of the Messages API, so that a mistake of our client shows in a test as it would there.

`tests/conftest.py` gives `StrictApi` to every simulator of a test process.
"""

import binascii
import json
import re
from base64 import b64decode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import takewhile
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from subagent_server.extensions.simulator import model_server
from subagent_server.extensions.simulator.model_request import (
    ApiError,
    RequestView,
    blocks_of,
    input_tokens,
    refuse,
    signature_of,
)
from subagent_server.extensions.simulator.model_script import Turn
from tests.helpers.turns import secret_of

Json = dict[str, Any]
SERVER_CALL = "server_tool_use"
RESULTS = {"web_search_tool_result": "web_search", "web_fetch_tool_result": "web_fetch"}
SERVER_INPUT = {"web_search": "query", "web_fetch": "url"}
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_PROPERTY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_MOST_CACHE_MARKS = 4
_TYPED_NAMES = {
    "bash": "bash",
    "text_editor_2025012": "str_replace_editor",
    "text_editor_202504": "str_replace_based_edit_tool",
    "text_editor_202507": "str_replace_based_edit_tool",
}
"""The names that the tools which the API defines must carry, by the start of their type."""


class StrictApi(model_server.MessagesApi):
    """The endpoints as strict as the API, with its context management.

    `window` is what the model takes, in tokens; None: anything. `edits`: whether it has context management.
    """

    window: int | None = None
    edits = True

    def check(self, body: Json, *, counting: bool, allow_prefill: bool) -> None:
        check_request(body, allow_prefill=allow_prefill)

    def composed(self, turn: Turn, request: RequestView, betas: str) -> Json:
        seen, applied = _edited(request.body, betas, self.edits)
        size = input_tokens(seen)
        if self.window is not None and size > self.window:
            raise ApiError(400, f"prompt is too long: {size} tokens > {self.window} maximum")
        return super().composed(turn, RequestView(seen), betas) | applied


def check_strictly() -> None:
    """Let every simulator of this process refuse all that the API refuses."""
    model_server.api_class = StrictApi


def check_request(body: dict[str, Any], *, allow_prefill: bool = False) -> None:
    """Raise unless the API would take `body`.

    Raises:
        ApiError: 400, with the path into the body and what is wrong there.
    """
    for place, block in enumerate(blocks_of(body.get("system"))):
        _check_any_text(block, f"system.{place}")
    _check_tools(body.get("tools") or [])
    check_messages(body.get("messages"), allow_prefill, body)
    _check_cache_marks(body)


def _check_tools(tools: Any) -> None:
    names: set[str] = set()
    for number, tool in enumerate(tools):
        kind = tool.get("type") or "custom"
        if not check_web_tool(tool, kind, f"tools.{number}.{kind}"):
            _check_tool(tool, kind, f"tools.{number}.{kind}")
        if tool.get("name") in names:
            raise refuse("tools", f"tool names must be unique, and {tool['name']!r} appears twice")
        names.update([tool["name"]] if "name" in tool else [])


def _check_tool(tool: dict[str, Any], kind: str, place: str) -> None:
    if kind != "custom":
        expected = next((name for start, name in _TYPED_NAMES.items() if kind.startswith(start)), None)
        if expected is not None and tool.get("name") != expected:
            raise refuse(f"{place}.name", f"must be {expected!r}")
        return
    name = tool.get("name")
    if not isinstance(name, str) or not _TOOL_NAME.fullmatch(name):
        raise refuse(f"{place}.name", f"must match '^{_TOOL_NAME.pattern}$'")
    if not isinstance(tool.get("description", ""), str):
        raise refuse(f"{place}.description", "must be a string")
    _check_schema(tool.get("input_schema"), f"{place}.input_schema")


def _check_schema(schema: Any, place: str) -> None:
    if not isinstance(schema, dict) or schema.get("type") != "object":
        raise refuse(f"{place}.type", "must be 'object'")
    if not schema.keys().isdisjoint({"oneOf", "allOf", "anyOf"}):
        raise refuse(place, "input_schema does not support oneOf, allOf or anyOf at the top level")
    properties = schema.get("properties") or {}
    wrong = next((key for key in properties if not _PROPERTY.fullmatch(key)), None)
    if wrong is not None:
        raise refuse(f"{place}.properties", f"the key {wrong!r} does not match '^{_PROPERTY.pattern}$'")
    if not _is_schema(json.dumps(schema)):
        raise refuse(place, "the JSON schema is invalid: it must match JSON Schema draft 2020-12")


@lru_cache(maxsize=4096)
def _is_schema(text: str) -> bool:
    try:
        Draft202012Validator.check_schema(json.loads(text))
    except SchemaError:
        return False
    return True


def _check_cache_marks(body: dict[str, Any]) -> None:
    marks = list(_cache_marks(body))
    for place, mark in marks:
        if not isinstance(mark, dict) or mark.get("type") != "ephemeral":
            raise refuse(f"{place}.cache_control.type", "must be 'ephemeral'")
        if mark.get("ttl", "5m") not in ("5m", "1h"):
            raise refuse(f"{place}.cache_control.ttl", "must be '5m' or '1h'")
    if len(marks) > _MOST_CACHE_MARKS:
        raise ApiError(
            400, f"At most {_MOST_CACHE_MARKS} blocks may carry cache_control, and {len(marks)} do."
        )


def _cache_marks(body: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield every cache mark with the path to the block that carries it."""
    blocks: list[tuple[str, dict[str, Any]]] = [("body", body)]
    blocks += [(f"tools.{number}", tool) for number, tool in enumerate(body.get("tools") or [])]
    blocks += [(f"system.{number}", block) for number, block in enumerate(blocks_of(body.get("system")))]
    for number, message in enumerate(body["messages"]):
        for position, block in enumerate(blocks_of(message["content"])):
            place = f"messages.{number}.content.{position}"
            blocks.append((place, block))
            if block.get("type") == "tool_result":
                blocks += [(place, inner) for inner in blocks_of(block.get("content"))]
    for place, block in blocks:
        if block.get("cache_control") is not None:
            yield place, block["cache_control"]


# -- messages: their order and their blocks

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
    role, content = message.get("role"), message.get("content")
    if role not in _ROLES:
        raise refuse(f"{place}.role", "must be 'user' or 'assistant'")
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
    if "cache_control" in block:
        raise refuse(f"{place}.thinking.cache_control", "Extra inputs are not permitted")
    if block.get("signature") != signature_of(block.get("thinking", "")):
        raise refuse(place, "Invalid `signature` in `thinking` block: pass it back as it came")


def _check_tool_use(block: dict[str, Any], place: str) -> None:
    call_id = block.get("id")
    if not isinstance(call_id, str) or not _CALL_ID.fullmatch(call_id):
        raise refuse(f"{place}.tool_use.id", f"must match '^{_CALL_ID.pattern}$'")
    if not isinstance(block.get("name"), str) or not _TOOL_NAME.fullmatch(block["name"]):
        raise refuse(f"{place}.tool_use.name", f"must match '^{_TOOL_NAME.pattern}$'")
    if not isinstance(block.get("input"), dict):
        raise refuse(f"{place}.tool_use.input", "must be an object")


def _check_tool_result(block: dict[str, Any], place: str) -> None:
    content, is_error = block.get("content"), block.get("is_error", False)
    if is_error and not content:
        raise refuse(f"{place}.tool_result", "content cannot be empty if `is_error` is true")
    for position, inner in enumerate(content if isinstance(content, list) else []):
        _check_result_part(inner, is_error, f"{place}.tool_result.content.{position}")


def _check_result_part(inner: Any, is_error: bool, place: str) -> None:
    if is_error and inner["type"] != "text":
        raise refuse(place, "all content must be of type 'text' if `is_error` is true")
    if inner["type"] == "text":
        _check_any_text(inner, place)
    if inner["type"] in ("image", "document"):
        _check_attachment(inner, place)


def _check_attachment(block: dict[str, Any], place: str) -> None:
    kind, source = block["type"], block["source"]
    if source["type"] != "base64":
        return
    allowed = _IMAGES if kind == "image" else ("application/pdf",)
    if source.get("media_type") not in allowed:
        raise refuse(f"{place}.{kind}.source.base64.media_type", f"must be one of {', '.join(allowed)}")
    try:
        b64decode(source.get("data") or "-", validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise refuse(f"{place}.{kind}.source.base64.data", "is not valid base64") from error


# -- calls: every call has its result, and every result its call


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
                raise refuse(place, f"`tool_use` ids must be unique, and {block['id']} appears twice")
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


# -- the tools that the API runs itself

_VERSIONS = {
    "web_search": ("20250305", "20260209", "20260318"),
    "web_fetch": ("20250910", "20260209", "20260309", "20260318"),
}
_COMMON = frozenset(
    {"type", "name", "max_uses", "allowed_domains", "blocked_domains", "allowed_callers", "cache_control"}
    | {"defer_loading", "strict", "response_inclusion"}
)
_KEYS = {
    "web_search": _COMMON | {"user_location"},
    "web_fetch": _COMMON | {"citations", "max_content_tokens", "use_cache", "url_sources"},
}
_KIND = re.compile(r"(web_search|web_fetch)_(\d+)")


# -- what is offered


def check_web_tool(tool: Json, kind: str, place: str) -> bool:
    """Return whether a tool is one of these.

    Raises:
        ApiError: 400; the API would not take it.
    """
    found = _KIND.fullmatch(kind)
    if found is None:
        return False
    name, version = found.groups()
    if version not in _VERSIONS[name]:
        raise refuse(f"{place}.type", f"{kind!r} is not a known tool type")
    if tool.get("name") != name:
        raise refuse(f"{place}.name", f"must be {name!r}")
    unknown = next((key for key in tool if key not in _KEYS[name]), None)
    if unknown is not None:
        raise refuse(f"{place}.{unknown}", "Extra inputs are not permitted")
    if tool.get("max_uses", 1) < 1:
        raise refuse(f"{place}.max_uses", "must be an integer of at least 1")
    if tool.get("allowed_domains") is not None and tool.get("blocked_domains") is not None:
        raise refuse(place, "only one of allowed_domains and blocked_domains may be given")
    for key in ("allowed_domains", "blocked_domains"):
        _check_domains(tool.get(key), f"{place}.{key}")
    return True


def _check_domains(domains: Any, place: str) -> None:
    if domains == []:
        raise refuse(place, "must be a list of at least one domain")
    for number, domain in enumerate(domains or []):
        if not domain or "://" in domain or " " in domain:
            raise refuse(f"{place}.{number}", "must be a domain without a scheme, such as example.com")


# -- what comes back in a request


def check_server_block(block: Json, place: str) -> None:
    """Check a call or result of such a tool: it has to come back as the API has sent it.

    Raises:
        ApiError: 400.
    """
    if block["type"] == SERVER_CALL:
        if not isinstance(block.get("id"), str) or not block["id"].startswith("srvtoolu_"):
            raise refuse(f"{place}.{SERVER_CALL}.id", "must match '^srvtoolu_[a-zA-Z0-9_]+$'")
        given, needed = block.get("input"), SERVER_INPUT.get(str(block.get("name")))
        if not isinstance(given, dict) or (needed is not None and not isinstance(given.get(needed), str)):
            raise refuse(f"{place}.{SERVER_CALL}.input.{needed}", "Field required")
        return
    for result in dicts_in(block.get("content")):
        if result.get("encrypted_content") != secret_of(result.get("url"), result.get("title")):
            raise refuse(place, "Invalid `encrypted_content` in `web_search_result`: pass it back as it came")


def check_citations(block: Json, role: str, place: str) -> None:
    """Check the citations of a text. Raises ApiError: 400."""
    citations = block.get("citations")
    if citations and role == "user":
        raise refuse(f"{place}.text.citations", "citations are not permitted in user messages")
    for citation in dicts_in(citations):
        kind = citation.get("type")
        secret = secret_of(citation.get("url"), citation.get("title"))
        if kind == "web_search_result_location" and citation.get("encrypted_index") != secret:
            raise refuse(place, "Invalid `encrypted_index` in a citation: pass it back as it came")


def check_server_calls(messages: list[Json]) -> None:
    """Check that each of these calls has its result.

    One beside calls of the client may wait for its result until the next answer, and one at the end of the
    conversation for the rest of its answer.

    Raises:
        ApiError: 400, naming the calls.
    """
    waiting: dict[str, str] = {}
    turns = joined_turns(messages)
    for number, turn in enumerate(turns):
        if turn.role != "assistant":
            continue
        for place, block in turn.blocks:
            if block["type"] == SERVER_CALL:
                waiting[block["id"]] = place
            elif block["type"] in RESULTS and waiting.pop(block["tool_use_id"], None) is None:
                raise refuse(place, f"unexpected `tool_use_id` in `{block['type']}`: {block['tool_use_id']}")
        own = {block["id"] for _, block in turn.blocks if block["type"] == SERVER_CALL}
        waiting = {call_id: place for call_id, place in waiting.items() if call_id in own}
        may_wait = number == len(turns) - 1 or any(block["type"] == "tool_use" for _, block in turn.blocks)
        if waiting and not may_wait:
            raise _unresolved(waiting)


def _unresolved(waiting: dict[str, str]) -> ApiError:
    place = next(iter(waiting.values()))
    return refuse(place, f"`{SERVER_CALL}` ids were found without their result: {', '.join(waiting)}")


def dicts_in(value: Any) -> list[Json]:
    """Return the objects in a list; none of anything else."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def is_continuation(body: Json) -> bool:
    """Whether a conversation ends with an answer of these tools, to be carried on after `pause_turn`."""
    offered = any(_KIND.fullmatch(str(tool.get("type"))) for tool in body.get("tools") or [])
    last = blocks_of(body["messages"][-1]["content"])
    return offered and any(block.get("type") in (SERVER_CALL, *RESULTS) for block in last)


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


# -- context management


BETA = "context-management-2025-06-27"
CLEARED = "[Old tool result content cleared]"
_CLEAR_TOOL_USES = "clear_tool_uses_20250919"
_CLEAR_THINKING = "clear_thinking_20251015"
_DEFAULT_TRIGGER = {"type": "input_tokens", "value": 100_000}
_DEFAULT_KEEP = 3


def _edited(body: Json, betas: str, able: bool) -> tuple[Json, Json]:
    """Return what the model sees of a request, and what its answer says of that besides."""
    wanted = body.get("context_management")
    if wanted is None:
        return body, {}
    if BETA not in betas:
        raise refuse("context_management", "Extra inputs are not permitted")
    if not able:
        raise refuse("context_management", f"{body['model']} does not support context management")
    seen, applied = body, []
    for number, edit in enumerate(wanted["edits"]):
        kind = edit["type"]
        if kind not in (_CLEAR_TOOL_USES, _CLEAR_THINKING):
            raise refuse(f"context_management.edits.{number}.type", f"{kind!r} is not known")
        if kind == _CLEAR_TOOL_USES:
            seen, told = _cleared(seen, edit)
            applied += told
    return seen, {"context_management": {"applied_edits": applied}}


def _cleared(body: dict[str, Any], edit: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the request without its old tool results, and what is told of it; whole where none are due."""
    before = input_tokens(body)
    names = {b["id"]: b["name"] for m in body["messages"] for b in _of_type(m, "tool_use")}
    uses = [b["tool_use_id"] for m in body["messages"] for b in _of_type(m, "tool_result")]
    trigger: dict[str, Any] = edit.get("trigger") or _DEFAULT_TRIGGER
    if (len(uses) if trigger["type"] == "tool_uses" else before) <= trigger["value"]:
        return body, []
    spared = set(edit.get("exclude_tools") or [])
    keep = (edit.get("keep") or {}).get("value", _DEFAULT_KEEP)
    old = {use for use in uses[: max(0, len(uses) - keep)] if names.get(use) not in spared}
    edited = body | {"messages": [_without(message, old, edit) for message in body["messages"]]}
    freed = before - input_tokens(edited)
    if not old or freed < (edit.get("clear_at_least") or {}).get("value", 1):
        return body, []
    told = {"type": _CLEAR_TOOL_USES, "cleared_tool_uses": len(old), "cleared_input_tokens": freed}
    return edited, [told]


def _of_type(message: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [block for block in blocks_of(message["content"]) if block["type"] == kind]


def _without(message: dict[str, Any], old: set[str], edit: dict[str, Any]) -> dict[str, Any]:
    if isinstance(message["content"], str):
        return message
    content = []
    for block in message["content"]:
        if block["type"] == "tool_result" and block["tool_use_id"] in old:
            block = block | {"content": CLEARED}
        elif block["type"] == "tool_use" and block["id"] in old and edit.get("clear_tool_inputs") is True:
            block = block | {"input": {}}
        content.append(block)
    return message | {"content": content}
