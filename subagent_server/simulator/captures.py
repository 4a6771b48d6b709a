"""`${name}` in a turn: replaced by what a capture found in the conversation."""

import re
from collections.abc import Mapping
from typing import Any

from subagent_server.simulator.parts import (
    Block,
    Capture,
    ScriptedFetch,
    ScriptedSearch,
    Text,
    Thinking,
    ToolUse,
)
from subagent_server.simulator.request_view import RequestView
from subagent_server.simulator.script import Turn

_PLACEHOLDER = re.compile(r"\$\$\{|\$\{(\w+)\}")


def filled_blocks(turn: Turn, request: RequestView) -> list[Block]:
    """Return the blocks of `turn` with its captures filled in; text that has become empty is left out.

    Only names that the turn captures are replaced, so `${HOME}` in a shell command stays; `$${` is `${`.
    """
    values = {name: _find(capture, request) for name, capture in turn.capture.items()}
    blocks = [_filled(block, values) for block in turn.blocks()]
    if turn.content is not None:
        return blocks
    return [block for block in blocks if not (isinstance(block, Text) and not block.text)]


def _find(capture: Capture, request: RequestView) -> str:
    for text in request.newest_texts():
        found = capture.pattern.search(text)
        if found is not None:
            value = found.group(1) if found.re.groups else found.group()
            return capture.default if value is None else value
    return capture.default


def _filled(block: Block, values: Mapping[str, str]) -> Block:
    match block:
        case Text():
            return block.model_copy(update={"text": _expanded(block.text, values)})
        case Thinking():
            return block.model_copy(update={"thinking": _expanded(block.thinking, values)})
        case ToolUse():
            return block.model_copy(update={"input": _expanded_inside(block.input, values)})
        case ScriptedSearch():
            return block.model_copy(update={"query": _expanded(block.query, values)})
        case ScriptedFetch():
            return block.model_copy(update={"url": _expanded(block.url, values)})
        case _:
            return block


def _expanded_inside(value: Any, values: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return _expanded(value, values)
    if isinstance(value, list):
        return [_expanded_inside(item, values) for item in value]
    if isinstance(value, dict):
        return {key: _expanded_inside(item, values) for key, item in value.items()}
    return value


def _expanded(text: str, values: Mapping[str, str]) -> str:
    def replacement(found: re.Match[str]) -> str:
        name = found.group(1)
        return "${" if name is None else values.get(name, found.group())

    return _PLACEHOLDER.sub(replacement, text)
