"""The prompt cache of the Messages API: entries at marks, found by prefix, within 20 blocks, above a size.

A prefix is everything before a block in the order tools, system, messages, the block included. An entry is
written at each mark whose prefix is long enough, lives as long as its mark says, and again after each use. A
request reads the longest entry that one of its marks finds: at the mark or at one of the 19 blocks before it.
"""

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from subagent_server.simulator.request_view import blocks_of
from subagent_server.simulator.tokens import characters, tokens_of

LOOKBACK = 20
"""How many blocks a mark looks at for an entry, its own the first."""
_LIFETIMES = {"5m": 300.0, "1h": 3600.0}
_UNMARKABLE = ("thinking", "redacted_thinking")
_SMALLEST = (
    (re.compile(r"claude-(haiku-4-5|opus-4-[56])"), 4096),
    (re.compile(r"claude-(opus-4-7|3-5-haiku|3-haiku)"), 2048),
    (re.compile(r"claude-(fable|mythos|opus|sonnet|haiku)-5"), 512),
    (re.compile(r"claude-\w+-\d"), 1024),
)
"""The smallest prefix that is cached, in tokens, by the name of the model; an invented model has none."""


@dataclass(frozen=True)
class CacheUse:
    """The input tokens of one request: uncached, read, and written for five minutes or an hour."""

    uncached: int
    read: int
    written_5m: int
    written_1h: int


@dataclass(frozen=True)
class _Breakpoint:
    """One block of a request: the name and size of the prefix that it ends, and its mark."""

    prefix: str
    tokens: int
    ttl: str | None


class PromptCache:
    """Remembers prefixes. The smallest size depends on the model; `smallest` (tokens) is one for all."""

    def __init__(self, smallest: int | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._smallest = smallest
        self._clock = clock
        self._entries: dict[str, tuple[float, float]] = {}

    def use(self, request: dict[str, Any], overhead: int) -> CacheUse:
        """Return the tokens that `request` reads and writes, and remember these; `overhead` not."""
        places = list(_places(request))
        total = places[-1].tokens if places else 0
        marks = [n for n, place in enumerate(places) if place.ttl and place.tokens >= self._least(request)]
        read = max((self._read(places, mark) for mark in marks), default=0)
        for mark in marks:
            lifetime = _LIFETIMES[places[mark].ttl or "5m"]
            self._entries[places[mark].prefix] = (self._clock() + lifetime, lifetime)
        end = places[marks[-1]].tokens if marks else 0
        long = [places[mark].tokens for mark in marks if places[mark].ttl == "1h"]
        written_1h = max(0, long[-1] - read) if long else 0
        end = max(end, read)
        return CacheUse(total - end + overhead, read, end - read - written_1h, written_1h)

    def _read(self, places: list[_Breakpoint], mark: int) -> int:
        """Return the size of the longest living entry that a mark finds; its life begins anew."""
        for place in reversed(places[max(0, mark - LOOKBACK + 1) : mark + 1]):
            expires, lifetime = self._entries.get(place.prefix, (0.0, 0.0))
            if expires > self._clock():
                self._entries[place.prefix] = (self._clock() + lifetime, lifetime)
                return place.tokens
        return 0

    def _least(self, request: dict[str, Any]) -> int:
        if self._smallest is not None:
            return self._smallest
        model = str(request["model"])
        return next((size for name, size in _SMALLEST if name.match(model)), 0)


def _places(request: dict[str, Any]) -> Iterator[_Breakpoint]:
    """Yield the blocks of a request, a mark of the whole request on the last that can carry one."""
    blocks = list(_blocks(request))
    ttls = [_ttl(block) for _, block in blocks]
    automatic = request.get("cache_control")
    if automatic:
        able = [n for n, (_, block) in enumerate(blocks) if block.get("type") not in _UNMARKABLE]
        if able and not ttls[able[-1]]:
            ttls[able[-1]] = automatic.get("ttl", "5m")
    running, size = hashlib.sha256(str(request["model"]).encode()), 0
    for (place, block), ttl in zip(blocks, ttls, strict=True):
        running.update(json.dumps([place, _unmarked(block)], sort_keys=True).encode())
        size += characters(block)
        yield _Breakpoint(running.hexdigest(), tokens_of(size), ttl)


def _blocks(request: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for tool in request.get("tools") or []:
        yield "tools", tool
    for block in blocks_of(request.get("system")):
        yield "system", block
    for message in request["messages"]:
        for block in blocks_of(message["content"]):
            yield message["role"], block


def _ttl(block: dict[str, Any]) -> str | None:
    """Return how long the mark of a block, or of a part of a tool result, lasts; None without a mark."""
    parts = block.get("content")
    marks = [part.get("cache_control") for part in parts] if isinstance(parts, list) else []
    mark = next((mark for mark in [block.get("cache_control"), *reversed(marks)] if mark), None)
    return str(mark.get("ttl", "5m")) if mark else None


def _unmarked(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _unmarked(item) for key, item in value.items() if key != "cache_control"}
    return [_unmarked(item) for item in value] if isinstance(value, list) else value
