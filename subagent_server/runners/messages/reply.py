"""One streamed reply of the model, put together from its events.

The SDK's own helper parses a tool's arguments anew with each piece and takes cut-off JSON for whole; here
they are parsed once, at the end, and a text that does not parse becomes an error that the model can mend.
"""

import json
import math
from dataclasses import dataclass, field
from typing import Any

from anthropic.types import RawMessageStreamEvent

Block = dict[str, Any]

_DEEPEST = 100
"""How many levels arguments may have: writing, masking and checking them recurses as deep."""


@dataclass(frozen=True)
class ToolCall:
    """A call the model made. `problem` says why it cannot be run, or is None."""

    call_id: str
    name: str
    arguments: dict[str, Any]
    problem: str | None = None


@dataclass
class ModelReply:
    """The reply so far; whole when `complete`."""

    content: list[Block] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    stop_reason: str | None = None
    response_id: str | None = None
    model: str | None = None
    usage: dict[str, int] = field(default_factory=dict)
    edits: list[Block] = field(default_factory=list)
    """The tool results that the API has hidden from the model, as it reports them."""
    complete: bool = False

    @property
    def text(self) -> str:
        """All text of the reply."""
        return "\n\n".join(b["text"] for b in self.content if b.get("type") == "text" and b["text"].strip())

    @property
    def thoughts(self) -> list[str]:
        """The readable thoughts of the reply."""
        return [b["thinking"] for b in self.content if b.get("type") == "thinking" and b.get("thinking")]

    def sendable(self) -> list[Block]:
        """The content as it goes back to the model: the API refuses empty texts."""
        return [b for b in self.content if b.get("type") != "text" or b["text"].strip()]


class ReplyBuilder:
    """Takes the events of one stream in their order."""

    def __init__(self) -> None:
        self.reply = ModelReply()
        self._pieces: dict[int, list[str]] = {}

    def take(self, event: RawMessageStreamEvent) -> None:
        """Add one event. Kinds that are new are passed over, as the API's versioning asks of clients."""
        match event.type:
            case "message_start":
                self.reply.response_id, self.reply.model = event.message.id, event.message.model
                self._count(event.message.usage.to_dict())
            case "content_block_start":
                self.reply.content.append(dict(event.content_block.to_dict()))
            case "content_block_delta":
                self._grow(event.index, event.delta.to_dict())
            case "message_delta":
                self.reply.stop_reason = event.delta.stop_reason
                self._count(event.usage.to_dict())
                managed = event.to_dict().get("context_management")
                if isinstance(managed, dict):
                    self.reply.edits = managed.get("applied_edits") or []
            case "message_stop":
                self._take_calls()
                self.reply.complete = True

    def _grow(self, index: int, delta: dict[str, Any]) -> None:
        block = self.reply.content[index]
        for source, target in _GROWS.items():
            if source in delta:
                self._pieces.setdefault(index, [])
                if target is None:
                    self._pieces[index].append(delta[source])
                else:
                    block[target] = block.get(target, "") + delta[source]
        if "citation" in delta:
            block["citations"] = [*(block.get("citations") or []), delta["citation"]]

    def _take_calls(self) -> None:
        """Parse the calls, in the order of their blocks; a block that was never closed counts too."""
        for index, block in enumerate(self.reply.content):
            if block.get("type") != "tool_use":
                continue
            raw = "".join(self._pieces.get(index, []))
            arguments, problem = _parsed(raw) if raw else (block.get("input") or {}, None)
            block["input"] = arguments
            self.reply.calls.append(ToolCall(block["id"], block["name"], arguments, problem))

    def _count(self, usage: dict[str, Any]) -> None:
        by_age = usage.get("cache_creation")
        counts = {**usage, **(by_age if isinstance(by_age, dict) else {})}
        self.reply.usage |= {key: value for key, value in counts.items() if isinstance(value, int)}


_GROWS: dict[str, str | None] = {
    "text": "text",
    "thinking": "thinking",
    "signature": "signature",
    "partial_json": None,
}
"""Which field of a delta grows which field of its block; the JSON of a call is gathered apart."""


def _parsed(raw: str) -> tuple[dict[str, Any], str | None]:
    try:
        value = json.loads(raw, parse_float=_finite, parse_constant=_finite)
    except ValueError as error:
        return {}, f"The arguments are not valid JSON ({error}): send them again, whole."
    except RecursionError:
        return {}, _TOO_DEEP
    if not isinstance(value, dict):
        return {}, "The arguments are no JSON object: send an object with the tool's fields."
    return ({}, _TOO_DEEP) if _is_deeper(value, _DEEPEST) else (value, None)


_TOO_DEEP = f"The arguments are nested more than {_DEEPEST} deep: send them flatter."


def _finite(text: str) -> float:
    """Return a number. Python reads `1e999` and `NaN`, and JSON cannot hold them."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is no number that JSON can hold")
    return number


def _is_deeper(value: Any, levels: int) -> bool:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels == 0 or any(_is_deeper(item, levels - 1) for item in inside)
