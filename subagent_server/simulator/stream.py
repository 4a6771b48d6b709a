"""An answer as the Messages API sends it: one JSON message, or the events of its stream."""

import json
import uuid
from collections.abc import Iterator
from typing import Any, Final

from subagent_server.simulator.caching import PromptCache
from subagent_server.simulator.captures import filled_blocks
from subagent_server.simulator.context import Context
from subagent_server.simulator.errors import error_body
from subagent_server.simulator.faults import Fault
from subagent_server.simulator.parts import (
    Block,
    RawBlock,
    RedactedThinking,
    ScriptedFetch,
    ScriptedSearch,
    Text,
    Thinking,
)
from subagent_server.simulator.request_view import RequestView
from subagent_server.simulator.script import Turn
from subagent_server.simulator.signatures import signature_of
from subagent_server.simulator.tokens import OVERHEAD, output_tokens
from subagent_server.simulator.web_tools import Searcher, cited

Event = dict[str, Any]

CUT: Final[Event] = {"type": "cut"}
"""Stands in a list of events for the end of the connection."""

STALL: Final[Event] = {"type": "stall"}
"""Stands in a list of events for silence that does not end."""
GARBAGE: Final[Event] = {"type": "garbage"}
"""Stands in a list of events for one that is no JSON."""
PING: Final[Event] = {"type": "ping"}
SEARCH: Final = "search"
"""The type of an event that stands for some `seconds` of nothing but pings."""

_CHUNK = 24
_MOST_CHUNKS = 200  # clients parse the whole tool input again at every fragment


def compose(
    turn: Turn, request: RequestView, message_id: str, cache: PromptCache, context: Context
) -> dict[str, Any]:
    """Return the whole answer to `request` as one message, with captures filled in and usage estimated.

    `context` is what the model sees of the request: that is what is counted.
    """
    searcher = Searcher(request)
    content = _contents(filled_blocks(turn, request), request, turn.keep_ids, searcher)
    calls = any(block["type"] == "tool_use" for block in content)
    stop_reason = turn.stop_reason or ("tool_use" if calls else "end_turn")
    edits = {"context_management": {"applied_edits": context.applied}} if context.asked else {}
    return edits | {
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
        "usage": _usage(turn, context, content, cache) | _searched(searcher),
    }


def _searched(searcher: Searcher) -> dict[str, Any]:
    """Return how often the API has searched; a call that failed costs nothing."""
    if not searcher.counted:
        return {}
    names = ("web_search", "web_fetch")
    return {"server_tool_use": {f"{name}_requests": searcher.counted[name] for name in names}}


def _contents(
    blocks: list[Block], request: RequestView, keep_ids: bool, searcher: Searcher
) -> list[dict[str, Any]]:
    """Return the blocks as the API writes them. A call whose id is taken gets a longer one, or `keep_ids`."""
    taken = set(request.tool_use_ids)
    contents = list(searcher.resolved())
    for number, block in enumerate(blocks):
        if isinstance(block, ScriptedSearch | ScriptedFetch):
            contents += searcher.blocks(block, block.id or f"srvtoolu_{_stable_id(request, number)}")
            continue
        content = _content(block, request)
        if content["type"] == "tool_use":
            content["id"] = content["id"] or f"toolu_{_stable_id(request, number)}"
            if content["id"] in taken and not keep_ids:
                content["id"] += f"_{request.turn}_{number}"
            taken.add(content["id"])
        contents.append(content)
    return contents


def _content(block: Block, request: RequestView) -> dict[str, Any]:
    match block:
        case Text():
            cites = (
                {"citations": [cited(citation) for citation in block.citations]} if block.citations else {}
            )
            return {"type": "text", "text": block.text, **cites}
        case Thinking():
            omitted = (request.body.get("thinking") or {}).get("display") == "omitted"
            shown = "" if omitted else block.thinking
            return {"type": "thinking", "thinking": shown, "signature": signature_of(shown)}
        case RedactedThinking():
            return {"type": "redacted_thinking", "data": block.data}
        case RawBlock():
            return {**block.raw, "_raw": True}
        case ScriptedSearch() | ScriptedFetch():
            raise AssertionError("calls of the API are more than one block")
    return {"type": "tool_use", "id": block.id, "name": block.name, "input": block.input}


def _stable_id(request: RequestView, number: int) -> str:
    """Return an id that a retry of the request gets again, and no other turn of any conversation."""
    return uuid.uuid5(uuid.NAMESPACE_OID, f"{request.conversation} {request.turn} {number}").hex[:24]


def _usage(turn: Turn, context: Context, content: list[dict[str, Any]], cache: PromptCache) -> dict[str, Any]:
    used = cache.use(context.body, OVERHEAD)
    counts = {
        "input_tokens": used.uncached,
        "cache_creation_input_tokens": used.written_5m + used.written_1h,
        "cache_read_input_tokens": used.read,
        "output_tokens": output_tokens(content),
    } | turn.usage.model_dump(exclude_none=True)
    for_an_hour = min(used.written_1h, counts["cache_creation_input_tokens"])
    return counts | {
        "cache_creation": {
            "ephemeral_5m_input_tokens": counts["cache_creation_input_tokens"] - for_an_hour,
            "ephemeral_1h_input_tokens": for_an_hour,
        },
        "service_tier": "standard",
    }


def events_of(message: dict[str, Any], chunk_size: int | None, fault: Fault | None = None) -> Iterator[Event]:
    """Yield the events of the stream that gives `message`, as far as `fault` lets it come.

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
    opening: dict[str, Any] = {
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "stop_details": None,
    }
    if "context_management" in message:
        opening["context_management"] = None
    yield {"type": "message_start", "message": message | opening | {"usage": usage | {"output_tokens": 1}}}
    for index, block in enumerate(message["content"]):
        if (seconds := block.get("_seconds")) is not None:
            yield {"type": SEARCH, "seconds": seconds}
        yield {"type": "content_block_start", "index": index, "content_block": _opened(block)}
        if index == 0:
            yield PING
        for delta in () if "_raw" in block else _deltas(block, chunk_size, malformed):
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


def _opened(block: dict[str, Any]) -> dict[str, Any]:
    if "_raw" in block:
        return as_sent(block)
    opened = block | _EMPTIED.get(block["type"], {})
    if block["type"] == "text" and "citations" in block:
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


def input_json(arguments: dict[str, Any], malformed: str | None = None) -> str:
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
