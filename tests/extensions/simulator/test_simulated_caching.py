"""The prompt cache as the simulator plays it: prefixes, marks, the look back, sizes and lifetimes."""

from typing import Any

import pytest

from subagent_server.extensions.simulator.model_request import LOOKBACK, CacheUse, PromptCache
from tests.helpers.turns import Turn

MARK = {"type": "ephemeral"}
HOUR = {"type": "ephemeral", "ttl": "1h"}
BLOCK = 100
"""The tokens of one block below, its keys and type included."""


def block(name: str, mark: Turn | None = None) -> Turn:
    """Return a block of text of 100 tokens."""
    made = {"type": "text", "text": name.ljust(BLOCK * 4 - len("typetexttext"), ".")}
    return made | ({"cache_control": mark} if mark else {})


def request(*blocks: Turn, model: str = "m", **more: Any) -> Turn:
    return {"model": model, "messages": [{"role": "user", "content": list(blocks)}], **more}


def used(use: CacheUse) -> tuple[int, int, int, int]:
    """Return the figures in hundreds of tokens."""
    figures = (use.uncached, use.read, use.written_5m, use.written_1h)
    assert all(figure % BLOCK == 0 for figure in figures), figures
    a, b, c, d = (figure // BLOCK for figure in figures)
    return a, b, c, d


def test_a_mark_writes_what_is_before_it_and_the_next_request_reads_that_and_writes_the_rest() -> None:
    cache = PromptCache()
    assert used(cache.use(request(block("a"), block("b", MARK), block("c")), 0)) == (1, 0, 2, 0)
    longer = [block("a"), block("b"), block("c"), block("d", MARK), block("e")]
    assert used(cache.use(request(*longer), 0)) == (1, 2, 2, 0)
    assert used(cache.use(request(*longer, cache_control=MARK), 0)) == (0, 4, 1, 0)
    assert used(cache.use(request(*longer[:3]), 0)) == (3, 0, 0, 0), "without a mark nothing is read"


@pytest.mark.parametrize("other", [{"model": "n"}, {"system": "You are."}, {"tools": [{"name": "t"}]}])
def test_what_differs_before_the_mark_is_another_prefix(other: Turn) -> None:
    cache, blocks = PromptCache(), (block("a"), block("b", MARK))
    cache.use(request(*blocks), 0)
    assert cache.use(request(*blocks, **other), 0).read == 0
    assert cache.use(request(block("x"), block("b", MARK)), 0).read == 0
    assert cache.use(request(*blocks), 0).read == 2 * BLOCK


def test_a_mark_looks_back_over_twenty_blocks_itself_included_and_no_further() -> None:
    first = request(block("a", MARK))
    near = [block("a"), *(block(str(n)) for n in range(LOOKBACK - 2)), block("end", MARK)]
    far = [block("a"), *(block(str(n)) for n in range(LOOKBACK - 1)), block("end", MARK)]
    for blocks, read in ((near, BLOCK), (far, 0)):
        cache = PromptCache()
        cache.use(first, 0)
        assert cache.use(request(*blocks), 0).read == read
    cache = PromptCache()
    cache.use(first, 0)
    assert cache.use(request(block("a", MARK), *far[1:]), 0).read == BLOCK, (
        "a mark where the entry is finds it"
    )


def test_each_lifetime_is_counted_apart_and_a_use_renews_it() -> None:
    moment = 1000.0
    cache = PromptCache(clock=lambda: moment)
    blocks = (block("a", HOUR), block("b", MARK))
    assert used(cache.use(request(*blocks), 0)) == (0, 0, 1, 1)
    moment += 299
    assert used(cache.use(request(*blocks), 0)) == (0, 2, 0, 0)
    moment += 299
    assert used(cache.use(request(*blocks), 0)) == (0, 2, 0, 0)
    moment += 301
    assert used(cache.use(request(*blocks), 0)) == (0, 1, 1, 0)
    moment += 3601
    assert used(cache.use(request(*blocks), 0)) == (0, 0, 1, 1)


@pytest.mark.parametrize(
    ("model", "blocks"),
    [("claude-sonnet-5-5", 6), ("claude-sonnet-4-5", 11), ("claude-opus-4-7", 21), ("claude-haiku-4-5", 41)],
)
def test_a_prefix_below_the_smallest_size_of_its_model_is_not_cached(model: str, blocks: int) -> None:
    for count, cached in ((blocks - 1, False), (blocks, True)):
        cache = PromptCache()
        body = request(*(block(str(n)) for n in range(count)), model=model, cache_control=MARK)
        assert cache.use(body, 0).written_5m == (count * BLOCK if cached else 0)
        assert cache.use(body, 0).read == (count * BLOCK if cached else 0)
    assert PromptCache(smallest=1).use(request(block("a", MARK), model=model), 0).written_5m == BLOCK
