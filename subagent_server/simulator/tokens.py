"""Plausible token counts, from sizes alone: four characters are a token, an image or PDF is 1,600.

Caching is estimated without memory: what the previous request of the conversation held is read, what lies
between that and the last cache mark is written. There is no smallest size, unlike at the real API, so that
short test prompts show it too.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from subagent_server.simulator.request_view import blocks_of

_CHARACTERS_PER_TOKEN = 4
_ATTACHMENT = 1600 * _CHARACTERS_PER_TOKEN
_OVERHEAD_TOKENS = 3
_UNCOUNTED = frozenset({"cache_control", "signature"})


@dataclass(frozen=True)
class InputTokens:
    """The tokens of a request: uncached, read from the cache, written to it (`ttl`: `5m` or `1h`)."""

    uncached: int
    read: int
    written: int
    ttl: str = "5m"

    @property
    def total(self) -> int:
        """All of them."""
        return self.uncached + self.read + self.written


@dataclass(frozen=True)
class _Segment:
    characters: int
    cache_control: dict[str, Any] | None


def output_tokens(content: list[dict[str, Any]]) -> int:
    """Return the estimated output tokens of an answer; never 0, as at the real API."""
    return max(1, _characters(content) // _CHARACTERS_PER_TOKEN)


def input_tokens(request: dict[str, Any]) -> InputTokens:
    """Return the estimated input tokens of a Messages request."""
    messages = request["messages"]
    answers = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
    asked_before = answers[-1] if answers else 0
    earlier = [*_preamble(request), *_segments(messages[:asked_before])] if answers else []
    segments = [*_preamble(request), *_segments(messages)]
    total = _sum(segments)
    end, ttl = _last_mark(segments, request.get("cache_control"))
    written_before = min(_sum(earlier), end)
    return InputTokens(
        uncached=total - end + _OVERHEAD_TOKENS, read=written_before, written=end - written_before, ttl=ttl
    )


def _last_mark(segments: list[_Segment], automatic: dict[str, Any] | None) -> tuple[int, str]:
    """Return the tokens up to the last cache mark (0 without one), and its time to live."""
    if automatic:
        return _sum(segments), automatic.get("ttl", "5m")
    for number in range(len(segments) - 1, -1, -1):
        mark = segments[number].cache_control
        if mark:
            return _sum(segments[: number + 1]), mark.get("ttl", "5m")
    return 0, "5m"


def _sum(segments: list[_Segment]) -> int:
    return sum(segment.characters for segment in segments) // _CHARACTERS_PER_TOKEN


def _preamble(request: dict[str, Any]) -> Iterator[_Segment]:
    for block in [*(request.get("tools") or []), *blocks_of(request.get("system"))]:
        yield _Segment(_characters(block), block.get("cache_control"))


def _segments(messages: list[dict[str, Any]]) -> Iterator[_Segment]:
    for message in messages:
        for block in blocks_of(message["content"]):
            inner = block.get("content")
            nested = [part.get("cache_control") for part in inner] if isinstance(inner, list) else []
            marks = [mark for mark in [*nested, block.get("cache_control")] if mark]
            yield _Segment(_characters(block), marks[-1] if marks else None)


def _characters(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, list):
        return sum(_characters(item) for item in value)
    if isinstance(value, dict):
        if value.get("type") in ("image", "document"):
            return _ATTACHMENT
        return sum(len(key) + _characters(item) for key, item in value.items() if key not in _UNCOUNTED)
    return _CHARACTERS_PER_TOKEN
