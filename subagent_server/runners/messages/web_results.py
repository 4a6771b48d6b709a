"""The blocks of tools that the API runs itself: its calls, their results, and the pages that they name.

All of it is data of others: a field may be missing, of any type, or of any length.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from subagent_server.domain.records import WebSource

Block = dict[str, Any]
Message = dict[str, Any]

SERVER_CALL = "server_tool_use"
_RESULT_END = "_tool_result"
_MOST_SHOWN = 50
_MOST_CHARACTERS = 500
_CITED, _READ, _FOUND = range(3)


class RecordEvent(Protocol):
    """How an event gets into the journal."""

    def __call__(self, kind: str, **facts: Any) -> None: ...


def is_server_result(block: Block) -> bool:
    """Whether a block is a result that the API has put into a reply."""
    kind = block.get("type")
    return isinstance(kind, str) and kind.endswith(_RESULT_END) and kind != "tool_result"


def calls_without_result(content: Sequence[Block]) -> list[Block]:
    """Return the calls of a message of the model that the API has not answered in it."""
    answered = {str(block.get("tool_use_id")) for block in content if is_server_result(block)}
    return [b for b in content if b.get("type") == SERVER_CALL and str(b.get("id")) not in answered]


def pending_calls(messages: Sequence[Message]) -> list[Block]:
    """Return the calls of the last reply that the API makes when it has the results beside them."""
    replies = [message for message in messages[-2:] if message["role"] == "assistant"]
    return calls_without_result(replies[-1]["content"]) if replies else []


def record_server_use(content: Sequence[Block], record: RecordEvent) -> None:
    """Append an event for each call that the API has made itself, and for each result."""
    names: dict[str, str] = {}
    for block in content:
        if block.get("type") == SERVER_CALL:
            name = _short(block.get("name"))
            names[str(block.get("id"))] = name
            record(
                "tool_call",
                toolCallId=_short(block.get("id")),
                toolName=name,
                arguments=_arguments(block.get("input")),
                server=True,
            )
        elif is_server_result(block):
            text, is_error = _shown(block.get("content"))
            record(
                "tool_result",
                toolCallId=_short(block.get("tool_use_id")),
                toolName=names.get(str(block.get("tool_use_id")))
                or str(block["type"]).removesuffix(_RESULT_END),
                isError=is_error,
                text=text,
                server=True,
            )


def sources_of(content: Sequence[Block]) -> Iterator[tuple[int, WebSource]]:
    """Yield the pages that a reply names: cited (0), read (1) or found (2)."""
    for block in content:
        for citation in _dicts(block.get("citations")):
            yield from _source(_CITED, citation.get("url"), citation.get("title"))
        if not is_server_result(block):
            continue
        inside = block.get("content")
        for result in _dicts(inside):
            yield from _source(_FOUND, result.get("url"), result.get("title"))
        if isinstance(inside, dict) and inside.get("url"):
            yield from _source(_READ, inside.get("url"), _title(inside))


def _source(rank: int, url: Any, title: Any) -> Iterator[tuple[int, WebSource]]:
    if isinstance(url, str) and url and len(url) <= 4 * _MOST_CHARACTERS:
        yield rank, WebSource(url=url, title=_short(title) if isinstance(title, str) and title else None)


def _title(fetched: Block) -> Any:
    document = fetched.get("content")
    return document.get("title") if isinstance(document, dict) else None


def _shown(inside: Any) -> tuple[str, bool]:
    """Return a result as the journal has it: titles and addresses, or the code of an error."""
    if isinstance(inside, dict) and "error_code" in inside:
        return f"error: {_short(inside['error_code'])}", True
    if isinstance(inside, dict):
        title = _title(inside)
        return " ".join(_short(part) for part in (title, inside.get("url")) if part), False
    results = _dicts(inside)
    lines = [
        " ".join(_short(r[key]) for key in ("title", "url") if r.get(key)) for r in results[:_MOST_SHOWN]
    ]
    if len(results) > _MOST_SHOWN:
        lines.append(f"and {len(results) - _MOST_SHOWN} more")
    return "\n".join(lines), False


def _arguments(given: Any) -> Any:
    if not isinstance(given, dict):
        return {}
    return {
        _short(key): value if isinstance(value, int | float) else _short(value)
        for key, value in given.items()
    }


def _dicts(value: Any) -> list[Block]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else "" if value is None else str(value)
    return text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 1] + "…"
