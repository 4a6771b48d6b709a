"""The bound of a tool's whole answer: the rest is counted in the answer, and comes with a later call.

Standard library only, as the lists are.
"""

import json
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

T = TypeVar("T")

MAX_ANSWER_CHARACTERS = 60_000
"""Of an answer about many runs, as JSON. The first run is in it in any case."""
MAX_IDS = 200
"""Of a list of ids; a sentence counts all of them."""


def those_that_fit(items: Iterable[T], wire: Callable[[T], dict[str, Any]]) -> list[T]:
    """Return as many of the first `items` as fit into one answer; at most one more is looked at."""
    fitting: list[T] = []
    room = MAX_ANSWER_CHARACTERS
    for item in items:
        room -= len(json.dumps(wire(item), ensure_ascii=False))
        if fitting and room < 0:
            break
        fitting.append(item)
    return fitting
