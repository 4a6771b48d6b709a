"""The answer of a script to a request, as the Messages API sends it."""

import json
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from subagent_server.extensions.simulator.model_request import (
    RequestView,
    error_body,
    input_tokens,
    output_tokens,
    signature_of,
)
from subagent_server.extensions.simulator.model_script import (
    NO_FURTHER_TURN,
    Block,
    Capture,
    Dialogue,
    Fault,
    RawBlock,
    RedactedThinking,
    RuleWhen,
    Script,
    TextPart,
    Thinking,
    ToolUse,
    Turn,
    When,
)
from subagent_server.run.durable import with_texts

# -- which turn answers: decided by the request alone, so retries need no memory


@dataclass(frozen=True)
class Choice:
    """A turn and its path in the script, such as `conversations[0].turns[2]`."""

    turn: Turn
    path: str


def choose(script: Script, request: RequestView) -> Choice:
    """Return the turn for `request`: of the first conversation that fits, else of the top level."""
    for number, conversation in enumerate(script.conversations):
        if matches(conversation.when, request):
            return _choose_in(conversation, request, f"conversations[{number}].")
    return _choose_in(script, request, "")


def matches(when: When, request: RequestView) -> bool:
    """Whether every key of `when` holds for `request`; an empty `when` always does."""
    patterns = [(when.prompt, request.prompt), (when.system, request.system), (when.model, request.model)]
    if isinstance(when, RuleWhen):
        if when.turn is not None and when.turn != request.turn:
            return False
        if when.tool_error is not None and when.tool_error != request.has_tool_error:
            return False
        patterns.append((when.last, request.last))
    if when.tool is not None and when.tool not in request.tools:
        return False
    return all(pattern is None or pattern.search(text) for pattern, text in patterns)


def _choose_in(dialogue: Dialogue, request: RequestView, prefix: str) -> Choice:
    for number, rule in enumerate(dialogue.rules):
        if matches(rule.when, request):
            return Choice(rule, f"{prefix}rules[{number}]")
    to_skip = request.turn
    for number, turn in enumerate(dialogue.turns):
        if to_skip < turn.repeat:
            return Choice(turn, f"{prefix}turns[{number}]")
        to_skip -= turn.repeat
    if dialogue.turns and dialogue.after == "repeat_last":
        return Choice(dialogue.turns[-1], f"{prefix}turns[{len(dialogue.turns) - 1}]")
    return Choice(NO_FURTHER_TURN, f"{prefix}after")


# -- `${name}` in a turn: replaced by what a capture found in the conversation


_PLACEHOLDER = re.compile(r"\$\$\{|\$\{(\w+)\}")


def filled_blocks(turn: Turn, request: RequestView) -> list[Block]:
    """Return the blocks of `turn` with its captures filled in; text that has become empty is left out.

    Only names that the turn captures are replaced, so `${HOME}` in a shell command stays; `$${` is `${`.
    """
    values = {name: _find(capture, request) for name, capture in turn.capture.items()}
    blocks = [_filled(block, values) for block in turn.blocks()]
    if turn.content is not None:
        return blocks
    return [block for block in blocks if not (isinstance(block, TextPart) and not block.text)]


def _find(capture: Capture, request: RequestView) -> str:
    for text in request.newest_texts():
        found = capture.pattern.search(text)
        if found is not None:
            value = found.group(1) if found.re.groups else found.group()
            return capture.default if value is None else value
    return capture.default


def _filled(block: Block, values: Mapping[str, str]) -> Block:
    match block:
        case TextPart():
            return block.model_copy(update={"text": _expanded(block.text, values)})
        case Thinking():
            return block.model_copy(update={"thinking": _expanded(block.thinking, values)})
        case ToolUse():
            filled = with_texts(block.input, lambda text: _expanded(text, values))
            return block.model_copy(update={"input": filled})
        case _:
            return block


def _expanded(text: str, values: Mapping[str, str]) -> str:
    def replacement(found: re.Match[str]) -> str:
        name = found.group(1)
        return "${" if name is None else values.get(name, found.group())

    return _PLACEHOLDER.sub(replacement, text)


# -- the answer: one JSON message, or the events of its stream


Event = dict[str, Any]

CUT: Final[Event] = {"type": "cut"}
"""In a list of events: the end of the connection."""

STALL: Final[Event] = {"type": "stall"}
"""In a list of events: silence that does not end."""
GARBAGE: Final[Event] = {"type": "garbage"}
"""In a list of events: one that is no JSON."""
PING: Final[Event] = {"type": "ping"}
PINGS: Final = "pings"
"""The type of an event that means some `seconds` of nothing but pings."""

_CHUNK = 24
_MOST_CHUNKS = 200  # clients parse the whole tool input again at every fragment


def compose(turn: Turn, request: RequestView, message_id: str) -> dict[str, Any]:
    """Return the whole answer to `request` as one message, with captures filled in and usage estimated."""
    content = _contents(filled_blocks(turn, request), request, turn.keep_ids)
    calls = any(block["type"] == "tool_use" for block in content)
    stop_reason = turn.stop_reason or ("tool_use" if calls else "end_turn")
    return {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": turn.stop_sequence,
        "stop_details": {"type": "refusal", "category": None, "explanation": None}
        if stop_reason == "refusal"
        else None,
        "usage": _usage(turn, request, content),
    }


def _contents(blocks: list[Block], request: RequestView, keep_ids: bool) -> list[dict[str, Any]]:
    """Return the blocks as the API writes them. A call whose id is taken gets a longer one, or `keep_ids`."""
    taken = set(request.tool_use_ids)
    contents = []
    for number, block in enumerate(blocks):
        content = _content(block, request)
        if isinstance(block, ToolUse):
            content["id"] = content["id"] or f"toolu_{_stable_id(request, number)}"
            if content["id"] in taken and not keep_ids:
                content["id"] += f"_{request.turn}_{number}"
            taken.add(content["id"])
        contents.append(content)
    return contents


def _content(block: Block, request: RequestView) -> dict[str, Any]:
    match block:
        case TextPart():
            return {"type": "text", "text": block.text}
        case Thinking():
            omitted = (request.body.get("thinking") or {}).get("display") == "omitted"
            shown = "" if omitted else block.thinking
            return {"type": "thinking", "thinking": shown, "signature": signature_of(shown)}
        case RedactedThinking():
            return {"type": "redacted_thinking", "data": block.data}
        case RawBlock():
            return {"type": "", **block.raw, "_raw": True, "_seconds": block.seconds}
    return {"type": "tool_use", "id": block.id, "name": block.name, "input": block.input}


def _stable_id(request: RequestView, number: int) -> str:
    """Return an id that a retry of the request gets again, and no other turn of any conversation."""
    return uuid.uuid5(uuid.NAMESPACE_OID, f"{request.conversation} {request.turn} {number}").hex[:24]


def _usage(turn: Turn, request: RequestView, content: list[dict[str, Any]]) -> dict[str, Any]:
    counts = {
        "input_tokens": input_tokens(request.body),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": output_tokens(content),
    } | turn.usage.model_dump(exclude_none=True)
    return counts | {
        "cache_creation": {
            "ephemeral_5m_input_tokens": counts["cache_creation_input_tokens"],
            "ephemeral_1h_input_tokens": 0,
        },
        "service_tier": "standard",
    }


def events_of(message: dict[str, Any], chunk_size: int | None, fault: Fault | None = None) -> Iterator[Event]:
    """Yield the events of the stream for `message`, as far as `fault` lets it come.

    `chunk_size` is in characters; without it short texts come in pieces of 24, long ones in 200 pieces.
    """
    malformed = fault.malformed_tool_json if fault else None
    events = _whole_stream(message, chunk_size, malformed)
    if fault is None or fault.kind not in _BREAKS:
        yield from events
        return
    last, limit = _BREAKS[fault.kind], fault.limit
    if fault.stream_error is not None:
        last = error_body(fault.stream_error, fault.message or "Simulated error")
    for number, event in enumerate(events):
        if number == limit or event["type"] == "message_stop":
            break
        yield event
    yield last


_BREAKS = {"cut_after": CUT, "stall_after": STALL, "garbage_after": GARBAGE, "stream_error": CUT}
"""What breaks a stream, by the kind of its fault."""


def _whole_stream(message: dict[str, Any], chunk_size: int | None, malformed: str | None) -> Iterator[Event]:
    usage = message["usage"]
    begun = {"output_tokens": min(1, usage["output_tokens"])}
    opening: dict[str, Any] = {
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "stop_details": None,
    }
    if "context_management" in message:
        opening["context_management"] = None
    yield {"type": "message_start", "message": message | opening | {"usage": usage | begun}}
    for index, block in enumerate(message["content"]):
        if seconds := block.get("_seconds"):
            yield {"type": PINGS, "seconds": seconds}
        yield {"type": "content_block_start", "index": index, "content_block": _opened(block)}
        if index == 0:
            yield PING
        for delta in () if _is_sent_whole(block) else _deltas(block, chunk_size, malformed):
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    closing = {key: message[key] for key in ("stop_reason", "stop_sequence", "stop_details")}
    totals = {
        key: value for key, value in usage.items() if key.endswith("_tokens") or key == "server_tool_use"
    }
    edits = {key: message[key] for key in ("context_management",) if key in message}
    yield {"type": "message_delta", "delta": closing, "usage": totals} | edits
    yield {"type": "message_stop"}


_EMPTIED: dict[str, dict[str, Any]] = {
    "text": {"text": ""},
    "thinking": {"thinking": "", "signature": ""},
    "tool_use": {"input": {}},
    "server_tool_use": {"input": {}},
}


def _is_sent_whole(block: dict[str, Any]) -> bool:
    """Whether a block is in its start event, as all raw ones but calls and texts that are in order."""
    if "_raw" not in block:
        return False
    if block["type"] == "text":
        return not (isinstance(block.get("text"), str) and dicts_only(block.get("citations", [])))
    return block["type"] not in ("tool_use", "server_tool_use") or not isinstance(block.get("input"), dict)


def dicts_only(value: Any) -> bool:
    """Whether a value is a list of objects."""
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def _opened(block: dict[str, Any]) -> dict[str, Any]:
    if _is_sent_whole(block):
        return as_sent(block)
    opened = block | _EMPTIED.get(block["type"], {})
    if "citations" in block:
        opened["citations"] = []
    return as_sent(opened)


def as_sent(block: dict[str, Any]) -> dict[str, Any]:
    """Return a block without what is only for its player."""
    return {key: value for key, value in block.items() if key not in ("_seconds", "_raw")}


def _deltas(block: dict[str, Any], chunk_size: int | None, malformed: str | None) -> Iterator[Event]:
    match block["type"]:
        case "text":
            for citation in block.get("citations", []):
                yield {"type": "citations_delta", "citation": citation}
            for piece in _pieces(block["text"], chunk_size):
                yield {"type": "text_delta", "text": piece}
        case "thinking":
            for piece in _pieces(block["thinking"], chunk_size):
                yield {"type": "thinking_delta", "thinking": piece}
            yield {"type": "signature_delta", "signature": block["signature"]}
        case "tool_use" | "server_tool_use":
            for piece in ["", *_pieces(input_json(block["input"], malformed), chunk_size)]:
                yield {"type": "input_json_delta", "partial_json": piece}


def input_json(arguments: Any, malformed: str | None = None) -> str:
    """Return tool input as it is streamed: nothing at all for no arguments, as at the real API.

    `malformed`: `truncated` ends in the middle, `garbled` is what even a lenient parser does not take.
    """
    whole = json.dumps(arguments, ensure_ascii=False)
    if malformed == "truncated":
        return whole[: max(1, len(whole) * 2 // 3)] if arguments else "{"
    if malformed == "garbled":
        return '{"": ]' + whole
    return whole if arguments else ""


def _pieces(text: str, chunk_size: int | None) -> Iterator[str]:
    size = chunk_size or max(min(_CHUNK, -(-len(text) // 3)), -(-len(text) // _MOST_CHUNKS), 1)
    for start in range(0, len(text), size):
        yield text[start : start + size]


def encode(event: Event) -> bytes:
    """Return `event` as it goes over the wire, a server-sent event."""
    if event is GARBAGE:
        return b'event: content_block_delta\ndata: {"type": "content_bl\n\n'
    data = json.dumps(event, ensure_ascii=False).encode("utf-8", "replace")
    return b"event: %s\ndata: %s\n\n" % (str(event["type"]).encode("ascii"), data)
