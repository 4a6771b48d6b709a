"""The conversation of a run with its model, on a terminal."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from subagent_server.cli.console.colours import coloured
from subagent_server.cli.console.text import escape_lines, one_line

_INDENT = "    "
_COLOURS = {"system": "grey", "user": "green", "assistant": "bold"}


def transcript_text(system: str, messages: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Yield the system prompt and each message, as a heading and its indented blocks."""
    if system.strip():
        yield _message("system", [escape_lines(system, _INDENT)])
    for message in messages:
        yield _message(one_line(str(message.get("role"))), list(_blocks(message.get("content"))))


def _message(role: str, blocks: list[str]) -> str:
    return "\n".join([coloured(f"── {role}", _COLOURS.get(role, "bold")), *blocks])


def _blocks(content: Any) -> Iterator[str]:
    for block in content if isinstance(content, list) else [content]:
        yield escape_lines(_text(block), _INDENT)


def _text(block: Any) -> str:
    """Return what a block of a message says. A transcript is data: a block of another form is its JSON."""
    match block:
        case str():
            return block
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": "thinking", "thinking": str(text)}:
            return f"~ {text}"
        case {"type": "tool_use", "name": str(name), "input": given}:
            return f"→ {name} {json.dumps(given, ensure_ascii=False, indent=1)}"
        case {"type": "tool_result", "content": inner, **rest}:
            mark = "✗" if rest.get("is_error") else "←"
            parts = inner if isinstance(inner, list) else [inner]
            return f"{mark} " + "\n".join(map(_text, parts))
        case {"type": "image" | "document" as kind, "source": {"media_type": str(media)}}:
            return f"[{kind}: {media}]"
    return json.dumps(block, ensure_ascii=False)
