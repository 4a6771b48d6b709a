"""Plausible token counts, from sizes alone: four characters are a token, an image or PDF is 1,600."""

from typing import Any

from subagent_server.simulator.request_view import blocks_of

_CHARACTERS_PER_TOKEN = 4
_ATTACHMENT = 1600 * _CHARACTERS_PER_TOKEN
_UNCOUNTED = frozenset({"cache_control", "signature"})

OVERHEAD = 3
"""The tokens of a request that belong to no block."""


def output_tokens(content: list[dict[str, Any]]) -> int:
    """Return the estimated output tokens of an answer; never 0, as at the real API."""
    return max(1, tokens_of(characters(content)))


def input_tokens(request: dict[str, Any]) -> int:
    """Return the estimated input tokens of a Messages request, cached or not."""
    parts = [*(request.get("tools") or []), *blocks_of(request.get("system"))]
    for message in request["messages"]:
        parts += blocks_of(message["content"])
    return tokens_of(characters(parts)) + OVERHEAD


def tokens_of(size: int) -> int:
    """Return how many tokens so many characters are."""
    return size // _CHARACTERS_PER_TOKEN


def characters(value: Any) -> int:
    """Return how many characters count in a part of a request or an answer."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, list):
        return sum(characters(item) for item in value)
    if isinstance(value, dict):
        if value.get("type") in ("image", "document"):
            return _ATTACHMENT
        return sum(len(key) + characters(item) for key, item in value.items() if key not in _UNCOUNTED)
    return _CHARACTERS_PER_TOKEN
