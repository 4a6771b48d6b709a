"""Turn a tool's result into a value, a text or an error for a program; media go to the model."""

import json
from dataclasses import dataclass, field
from typing import Any

from subagent_server.toolkit.code_mode.catalogue import ToolFunction
from subagent_server.toolkit.mcp_servers.connection import CallAnswer
from subagent_server.toolkit.mcp_servers.results import Attachments, converted
from subagent_server.toolkit.tool import ContentBlock


@dataclass(frozen=True)
class Value:
    """The answer to a call, as its program gets it, and the images and documents for the model."""

    reply: dict[str, Any]
    media: list[ContentBlock] = field(default_factory=list)


def value_of(answer: CallAnswer, function: ToolFunction, attachments: Attachments) -> Value:
    """Return the value of a result.

    A tool that says what it returns returns that value. Any other returns text, with its structured content
    at hand: so the type of a result never depends on the data.
    """
    result = answer.result
    shown = converted(result, attachments)
    if shown.is_error:
        return Value({"error": shown.text})
    media = [block for block in shown.content if block["type"] != "text"]
    structured = result.structured_content
    if function.tool.output_schema is not None and structured is not None:
        return Value({"value": _unwrapped(structured) if function.stub.unwraps else structured}, media)
    words = [_words(block) for block in shown.content]
    known = {} if structured is None else {"value": structured}
    return Value({"text": "\n\n".join(words), **known}, media)


def _unwrapped(structured: Any) -> Any:
    is_wrapped = isinstance(structured, dict) and structured.keys() == {"result"}
    return structured["result"] if is_wrapped else structured


def _words(block: ContentBlock) -> str:
    if block["type"] == "text":
        return str(block["text"])
    return f"[{block['type']}: you will see it after the program]"


def preview(reply: dict[str, Any], characters: int) -> str:
    """Return the beginning of an answer, for people and for lists."""
    value = next((reply[key] for key in ("error", "text", "value") if key in reply), None)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= characters else text[: characters - 1] + "…"
