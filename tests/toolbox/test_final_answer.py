"""A final answer is checked against its schema in a process, so that no pattern can hold up the run."""

import asyncio
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from subagent_server.toolbox.basic import FinalAnswer
from subagent_server.toolbox.tool import ToolResult
from tests.helpers.wait import wait_for

pytestmark = pytest.mark.process

PATTERN: dict[str, object] = {
    "type": "object",
    "properties": {"mail": {"type": "string", "pattern": "^([a-z0-9]+)+@x$"}},
}
CHOICES = {"anyOf": [{"$ref": "#/$defs/node"}, {"$ref": "#/$defs/node"}, {"const": 1}]}
RECURSIVE: dict[str, object] = {
    "type": "object",
    "properties": {"node": {"$ref": "#/$defs/node"}},
    "$defs": {"node": {"type": "object", "properties": {"next": CHOICES}}},
}
UNIQUE: dict[str, object] = {
    "type": "object",
    "properties": {"items": {"type": "array", "uniqueItems": True}},
}


def deep(levels: int) -> dict[str, Any]:
    """Return data that fits none of two branches, at each of its levels."""
    node: dict[str, Any] = {"next": 2}
    for _ in range(levels):
        node = {"next": node}
    return node


BOMBS: list[tuple[dict[str, object], dict[str, Any]]] = [
    (PATTERN, {"mail": "a" * 44 + "!"}),
    (RECURSIVE, {"node": deep(40)}),
    (UNIQUE, {"items": [{"n": [n]} for n in range(30_000)]}),
]


async def answered(final: FinalAnswer, arguments: dict[str, Any]) -> tuple[ToolResult, int]:
    """Return the result of a call, and how often the event loop ran meanwhile."""
    call = asyncio.create_task(final.call(arguments))
    turns = 0
    while not call.done():
        await asyncio.wait([call], timeout=0.02)
        turns += 1
    return call.result(), turns


def test_an_answer_that_cannot_be_checked_in_time_is_an_error_and_the_event_loop_goes_on() -> None:
    before = children()
    for schema, bomb in BOMBS:
        final = FinalAnswer(schema, seconds=0.4)
        result, turns = asyncio.run(answered(final, bomb))
        assert result.is_error and "within 0.4 s" in result.text and "\n" not in result.text, result.text
        assert turns > 5 and not final.has_answer
        wait_for(partial(_accepts, final), 60, "an answer in time, even on a machine that is busy")
        assert final.answer == {}
        assert children() == before, "nothing is left of either"


def _accepts(final: FinalAnswer) -> bool:
    return not asyncio.run(final.call({})).is_error


def test_a_cancelled_check_leaves_no_process() -> None:
    before = children()

    async def cancelled() -> None:
        schema, bomb = BOMBS[0]
        async with asyncio.timeout(0.3):
            await FinalAnswer(schema, seconds=60).call(bomb)

    with pytest.raises(TimeoutError):
        asyncio.run(cancelled())
    assert children() == before


def children() -> str:
    """Return the pids of the processes that this one has started and not collected."""
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii")


@pytest.mark.parametrize(
    ("unit", "value", "fits"),
    [
        (0.01, 19.99, True),
        (0.01, 19.995, False),
        (0.1, 1e300, True),
        (3, 9, True),
        (2, 9, False),
        (0.5, 7, True),
    ],
)
def test_an_amount_is_a_multiple_by_the_digits_that_were_written(
    unit: float, value: float, fits: bool
) -> None:
    final = FinalAnswer({"type": "object", "properties": {"price": {"multipleOf": unit}}})
    result, _ = asyncio.run(answered(final, {"price": value}))
    assert result.is_error is not fits, result.text
