"""Context management of the Messages API: the request without old tool results, and the model's window."""

from dataclasses import dataclass, field
from typing import Any

from subagent_server.simulator.errors import ApiError, refuse
from subagent_server.simulator.request_view import blocks_of
from subagent_server.simulator.tokens import input_tokens

BETA = "context-management-2025-06-27"
CLEARED = "[Old tool result content cleared]"
_CLEAR_TOOL_USES = "clear_tool_uses_20250919"
_CLEAR_THINKING = "clear_thinking_20251015"
_DEFAULT_TRIGGER = {"type": "input_tokens", "value": 100_000}
_DEFAULT_KEEP = 3


@dataclass(frozen=True)
class Context:
    """A request as the model sees it, and the edits that led there. `asked`: the request wanted edits."""

    body: dict[str, Any]
    asked: bool = False
    applied: list[dict[str, Any]] = field(default_factory=list)


def managed(body: dict[str, Any], betas: str, *, able: bool, window: int | None) -> Context:
    """Return a request as the model sees it. `betas` is the header, `able` whether the model has edits.

    Raises:
        ApiError: 400; the edits are not to be had or wrong, or what is left is larger than `window` tokens.
    """
    context = _edited(body, betas, able)
    size = input_tokens(context.body)
    if window is not None and size > window:
        raise ApiError(400, f"prompt is too long: {size} tokens > {window} maximum")
    return context


def _edited(body: dict[str, Any], betas: str, able: bool) -> Context:
    wanted = body.get("context_management")
    if wanted is None:
        return Context(body)
    if BETA not in betas:
        raise refuse("context_management", "Extra inputs are not permitted")
    if not able:
        raise refuse("context_management", f"{body['model']} does not support context management")
    edits = wanted.get("edits", []) if isinstance(wanted, dict) else None
    if not isinstance(edits, list):
        raise refuse("context_management.edits", "must be a list")
    seen, applied = body, []
    for number, edit in enumerate(edits):
        kind = edit.get("type") if isinstance(edit, dict) else None
        if kind not in (_CLEAR_TOOL_USES, _CLEAR_THINKING):
            raise refuse(f"context_management.edits.{number}.type", f"{kind!r} is not known")
        if kind == _CLEAR_TOOL_USES:
            seen, told = _cleared(seen, edit)
            applied += told
    return Context(seen, True, applied)


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
