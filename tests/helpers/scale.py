"""How much of a campaign runs: a fixed sample in `make test`, the whole in `make test-whole` and `make fuzz`.

A sample has fewer cases or repetitions, and the same assertions. It is the same at each run, and spread over
the whole, so that each kind of case is there at least once.
"""

import os
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

T = TypeVar("T")

WHOLE = os.environ.get("SUBAGENT_TESTS_WHOLE") == "1"
"""Whether campaigns run whole."""


def times(sample: int, whole: int) -> int:
    """Return how often something is repeated."""
    return whole if WHOLE else sample


def sampled(cases: Sequence[T], count: int, *kinds: Callable[[T], Hashable]) -> list[T]:
    """Return about `count` of the cases, spread evenly, in their order.

    Each function of `kinds` sorts the cases: of each of its values there is at least one.
    """
    if WHOLE or count >= len(cases):
        return list(cases)
    chosen = {number * len(cases) // count for number in range(count)}
    for kind in kinds:
        seen = {kind(cases[number]) for number in chosen}
        for number, case in enumerate(cases):
            if kind(case) not in seen:
                seen.add(kind(case))
                chosen.add(number)
    return [case for number, case in enumerate(cases) if number in chosen]
