"""The refusals of the Messages API, so that a mistake of a client shows here as it would there."""

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from subagent_server.simulator.errors import ApiError, refuse
from subagent_server.simulator.message_checks import check_messages
from subagent_server.simulator.request_view import blocks_of
from subagent_server.simulator.web_tools import check_web_tool

_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_PROPERTY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_MOST_CACHE_MARKS = 4
_LEAST_THINKING = 1024
_TYPED_NAMES = {
    "bash": "bash",
    "text_editor_2025012": "str_replace_editor",
    "text_editor_202504": "str_replace_based_edit_tool",
    "text_editor_202507": "str_replace_based_edit_tool",
}
"""The names that the tools which the API defines must carry, by the start of their type."""


def check_request(
    body: Any, *, counting: bool = False, allow_prefill: bool = False, web_tools: bool = True
) -> dict[str, Any]:
    """Return `body` if the API would take it; `counting` is for the endpoint that only counts tokens.

    `web_tools` says whether the API searches and fetches itself.

    Raises:
        ApiError: 400, with the path into the body and what is wrong there.
    """
    if not isinstance(body, dict):
        raise ApiError(400, "The request body must be a JSON object.")
    _check_settings(body, counting)
    _check_system(body.get("system"))
    _check_tools(body.get("tools"), web_tools)
    _check_tool_choice(body)
    check_messages(body.get("messages"), allow_prefill, body)
    _check_cache_marks(body)
    return body


def _check_settings(body: dict[str, Any], counting: bool) -> None:
    required = ("model", "messages") if counting else ("model", "max_tokens", "messages")
    for key in required:
        if body.get(key) is None:
            raise refuse(key, "Field required")
    if not isinstance(body["model"], str) or not body["model"]:
        raise refuse("model", "must be the name of a model")
    limit = body.get("max_tokens", 1)
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
        raise refuse("max_tokens", "must be an integer of at least 0")
    if not isinstance(body.get("stream", False), bool):
        raise refuse("stream", "must be true or false")
    _check_thinking(body.get("thinking"), None if counting else limit)


def _check_thinking(thinking: Any, limit: int | None) -> None:
    if thinking is None:
        return
    if not isinstance(thinking, dict) or not isinstance(thinking.get("type"), str):
        raise refuse("thinking.type", "Field required")
    if thinking["type"] != "enabled":
        return
    budget = thinking.get("budget_tokens")
    if not isinstance(budget, int) or budget < _LEAST_THINKING:
        raise refuse("thinking.enabled.budget_tokens", f"must be an integer of at least {_LEAST_THINKING}")
    if limit is not None and limit <= budget:
        raise refuse("max_tokens", "must be greater than `thinking.budget_tokens`")


def _check_system(system: Any) -> None:
    if system is None or isinstance(system, str):
        return
    if not isinstance(system, list):
        raise refuse("system", "must be a string or a list of text blocks")
    for number, block in enumerate(system):
        if (
            not isinstance(block, dict)
            or block.get("type") != "text"
            or not isinstance(block.get("text"), str)
        ):
            raise refuse(f"system.{number}", "must be a text block")
        if not block["text"]:
            raise refuse("system", "text content blocks must be non-empty")


def _check_tools(tools: Any, web_tools: bool) -> None:
    if tools is None:
        return
    if not isinstance(tools, list):
        raise refuse("tools", "must be a list")
    names: set[str] = set()
    for number, tool in enumerate(tools):
        if not isinstance(tool, dict):
            raise refuse(f"tools.{number}", "must be an object")
        kind = tool.get("type") or "custom"
        if not check_web_tool(tool, kind, f"tools.{number}.{kind}", able=web_tools):
            _check_tool(tool, kind, f"tools.{number}.{kind}")
        if tool.get("name") in names:
            raise refuse("tools", f"tool names must be unique, and {tool['name']!r} stands twice")
        names.update([tool["name"]] if "name" in tool else [])


def _check_tool(tool: dict[str, Any], kind: str, place: str) -> None:
    if kind != "custom":
        expected = next((name for start, name in _TYPED_NAMES.items() if kind.startswith(start)), None)
        if expected is not None and tool.get("name") != expected:
            raise refuse(f"{place}.name", f"must be {expected!r}")
        return
    name = tool.get("name")
    if name is None:
        raise refuse(f"{place}.name", "Field required")
    if not isinstance(name, str) or not _TOOL_NAME.fullmatch(name):
        raise refuse(f"{place}.name", f"must match '^{_TOOL_NAME.pattern}$'")
    if not isinstance(tool.get("description", ""), str):
        raise refuse(f"{place}.description", "must be a string")
    _check_schema(tool.get("input_schema"), f"{place}.input_schema")


def _check_schema(schema: Any, place: str) -> None:
    if schema is None:
        raise refuse(place, "Field required")
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


def _check_tool_choice(body: dict[str, Any]) -> None:
    choice = body.get("tool_choice")
    if choice is None:
        return
    if not isinstance(choice, dict) or choice.get("type") not in ("auto", "any", "tool", "none"):
        raise refuse("tool_choice.type", "must be 'auto', 'any', 'tool' or 'none'")
    tools = body.get("tools") or []
    if not tools:
        raise refuse("tool_choice", "may only be given with tools")
    if choice["type"] == "tool" and choice.get("name") not in {tool.get("name") for tool in tools}:
        raise refuse("tool_choice.name", f"{choice.get('name')!r} is not among the tools")


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
