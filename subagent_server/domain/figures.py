"""Figures of runs that may be unknown: tokens, turns, calls, money.

An unknown figure is None, never 0. A sum with an unknown part is the sum of the other parts, marked as "at
least". Standard library only, because lists of runs are made without pydantic.
"""

from collections.abc import Collection
from decimal import Decimal
from typing import TypeVar

N = TypeVar("N", int, Decimal)
TOKENS = ("inputTokens", "outputTokens", "cacheReadTokens", "cacheWriteTokens")
"""The counts of tokens of every kind, as files and views name them."""


def added(one: N | None, other: N | None) -> tuple[N | None, bool]:
    """Return the sum of two figures, and whether a part of it is missing.

    Of an unknown figure and nothing, the sum is not known: "at least 0" would say no more.
    """
    if one is None and other is None:
        return None, True
    if one is None or other is None:
        known = other if one is None else one
        return (known, True) if known else (None, False)
    return one + other, False


def left_of(total: int | None, part: int | None, *, is_least: bool) -> tuple[int | None, bool]:
    """Return what the rest of a sum is without one of its parts, and whether some of the rest is missing.

    `is_least` says that some of the sum is missing. If that may be the `part` alone, the rest is marked all
    the same, until somebody adds it up anew.
    """
    if total is None:
        return (None, False) if is_least or part is not None else (0, False)
    rest = max(0, total - (part or 0))
    return (None, False) if is_least and not rest else (rest, is_least)


def least_mark(at_least: Collection[str], *names: str) -> str:
    """Return the sign that stands before a sum of which a part is not known, in tables."""
    return "≥" if any(name in at_least for name in names) else ""


def known_sum(*figures: int | None) -> int | None:
    """Return the sum of those figures that are known; None if none of them are."""
    known = [figure for figure in figures if figure is not None]
    return sum(known) if known else None
