"""One streamed reply of the model, put together from its events.

The SDK's own helper parses a tool's arguments anew with each piece and takes cut-off JSON for whole; here
they are parsed once, at the end, and a text that does not parse becomes an error that the model can mend.
"""

import json
import math
from dataclasses import dataclass, field
from typing import Any

from anthropic.types import RawMessageStreamEvent

from subagent_server.runners.messages.texts import joined_text, text_of

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
        return joined_text(self.content)

    @property
    def thoughts(self) -> list[str]:
        """The readable thoughts of the reply."""
        thoughts = (b.get("thinking") for b in self.content if b.get("type") == "thinking")
        return [thought for thought in thoughts if isinstance(thought, str) and thought]

    def sendable(self) -> list[Block]:
        """The content as it goes back to the model: the API refuses empty texts."""
        return [b for b in self.content if b.get("type") != "text" or text_of(b).strip()]


class ReplyBuilder:
    """Takes the events of one stream in their order.

    A text comes in pieces, as many as the API likes. They are joined when the reply is read: joining them at
    each piece would take the square of their number.
    """

    def __init__(self) -> None:
        self._reply = ModelReply()
        self._pieces: dict[tuple[int, str], list[str]] = {}
        """By block and field, the text that the field has and the pieces that belong behind it."""

    @property
    def reply(self) -> ModelReply:
        """The reply so far."""
        for (index, name), pieces in self._pieces.items():
            if name != _ARGUMENTS and len(pieces) > 1:
                pieces[:] = ["".join(pieces)]
                self._reply.content[index][name] = pieces[0]
        return self._reply

    @property
    def searches(self) -> bool:
        """Whether the API is at a call of its own tools: nothing else comes before the result."""
        content = self._reply.content
        return bool(content) and content[-1].get("type") == "server_tool_use"

    def take(self, event: RawMessageStreamEvent) -> None:
        """Add one event. Kinds that are new are passed over, as the API's versioning asks of clients."""
        match event.type:
            case "message_start":
                self._reply.response_id, self._reply.model = event.message.id, event.message.model
                self._count(event.message.usage.to_dict(warnings=False))
            case "content_block_start":
                self._reply.content.append(dict(event.content_block.to_dict(warnings=False)))
            case "content_block_delta":
                self._grow(event.index, event.delta.to_dict(warnings=False))
            case "message_delta":
                self._reply.stop_reason = event.delta.stop_reason
                self._count(event.usage.to_dict(warnings=False))
                managed = event.to_dict(warnings=False).get("context_management")
                if isinstance(managed, dict):
                    self._reply.edits = managed.get("applied_edits") or []
            case "message_stop":
                self._take_calls()
                self._reply.complete = True

    def _grow(self, index: int, delta: dict[str, Any]) -> None:
        block = self._reply.content[index]
        for name in _GROWING:
            if name in delta:
                first = block.get(name, "")
                if not (isinstance(first, str) and isinstance(delta[name], str)):
                    raise TypeError(f"a piece of {name} is not a text")
                self._pieces.setdefault((index, name), [first]).append(delta[name])
        if "citation" in delta:
            block["citations"] = block.get("citations") or []
            block["citations"].append(delta["citation"])

    def _take_calls(self) -> None:
        """Parse the arguments of calls, in their order; those of a block that was never closed count too.

        The API runs its own tools (`server_tool_use`): their input goes back to it as it came.
        """
        for index, block in enumerate(self._reply.content):
            raw = "".join(self._pieces.get((index, _ARGUMENTS), []))
            is_call = block.get("type") == "tool_use"
            if not (is_call or raw):
                continue
            arguments, problem = _parsed(raw) if raw else (block.get("input") or {}, None)
            block["input"] = arguments
            if not is_call:
                continue
            self._reply.calls.append(ToolCall(block["id"], block["name"], arguments, problem))

    def _count(self, usage: dict[str, Any]) -> None:
        by_age = usage.get("cache_creation")
        by_tool = usage.get("server_tool_use")
        counts = {**usage}
        for more in (by_age, by_tool):
            counts |= more if isinstance(more, dict) else {}
        counts = {key: value for key, value in counts.items() if isinstance(value, int) and value >= 0}
        if max(counts.values(), default=0) > _MOST_TOKENS:
            raise TypeError("a count of tokens is beyond all bounds")
        self._reply.usage |= counts


_MOST_TOKENS = 1 << 53
"""Of one call, so that sums of many stay numbers that every reader of JSON can hold."""
_ARGUMENTS = "partial_json"
_GROWING = ("text", "thinking", "signature", _ARGUMENTS)
"""The fields of a delta that grow the field of that name of its block; the JSON of a call stays apart."""


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
