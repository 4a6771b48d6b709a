"""The usage of a run, and sums of it over a tree of runs."""

from decimal import Decimal
from typing import Any

from pydantic import SerializerFunctionWrapHandler, model_serializer
from pydantic.alias_generators import to_camel

from subagent_server.domain.figures import added, known_sum, left_of
from subagent_server.domain.record_base import Money, Record


class Usage(Record):
    """The cost of a run so far. Totals, never differences, so that recording one twice changes nothing.

    A figure that is None is not known: a program need not tell it. In a sum over runs `at_least` names the
    figures of which a part is not known.
    """

    input_tokens: int | None = 0
    output_tokens: int | None = 0
    cache_read_tokens: int | None = 0
    cache_write_tokens: int | None = 0
    cost_usd: Money | None = None
    turns: int | None = 0
    tool_calls: int | None = 0
    web_searches: int | None = 0
    web_fetches: int | None = 0
    at_least: tuple[str, ...] = ()

    @model_serializer(mode="wrap")
    def _with_nulls(self, write: SerializerFunctionWrapHandler):  # type: ignore[no-untyped-def]  # the schema
        """Write a count that is not known as null: where it is missing, it is 0."""
        data = write(self)
        for name in _COUNTS:
            if getattr(self, name) is None:
                data[to_camel(name)] = None
        if not self.at_least:
            data.pop("atLeast", None)
        return data

    @property
    def tokens(self) -> int | None:
        """All tokens together, as far as they are known; None if none of them are."""
        return known_sum(
            self.input_tokens, self.output_tokens, self.cache_read_tokens, self.cache_write_tokens
        )

    def merged(self, other: "Usage | None") -> "Usage":
        """Return the larger of each figure: totals only grow. Of equal ones `other` knows what is missing."""
        if other is None:
            return self
        figures, least = {}, set()
        for name in _FIGURES:
            one, another = getattr(self, name), getattr(other, name)
            is_ours = another is None if one is not None else False
            chosen = self if is_ours or (one is not None and another is not None and one > another) else other
            figures[name] = getattr(chosen, name)
            if to_camel(name) in chosen.at_least:
                least.add(to_camel(name))
        return Usage(**figures, at_least=_in_order(least))

    def caught_up(self, fresh: "Usage | None") -> "Usage":
        """Return a sum over runs, caught up with a newer one: a run that came since may tell nothing."""
        if fresh is None:
            return self
        unknown = [n for n in _COUNTS if getattr(self, n) == 0 and getattr(fresh, n) is None]
        return self.merged(fresh).model_copy(update=dict.fromkeys(unknown))

    def plus(self, other: "Usage") -> "Usage":
        """Return the sum of two runs' usage."""
        nothing = Usage()
        if nothing in (self, other):
            return other if self == nothing else self
        figures, least = {}, {*self.at_least, *other.at_least}
        for name in _FIGURES:
            figures[name], lacks = added(getattr(self, name), getattr(other, name))
            if lacks and (name in _COUNTS or figures[name] is not None):
                least.add(to_camel(name))
        return Usage(**figures, at_least=_in_order(least))

    def less(self, own: "Usage") -> "Usage":
        """Return what is left of the sum of a tree without its first run; never less than nothing."""
        figures: dict[str, Any] = {}
        least: set[str] = set()
        for name in _COUNTS:
            is_least = to_camel(name) in self.at_least
            figures[name], lacks = left_of(getattr(self, name), getattr(own, name), is_least=is_least)
            if lacks:
                least.add(to_camel(name))
        cost = None
        if self.cost_usd is not None:
            cost = max(Decimal(0), self.cost_usd - (own.cost_usd or 0))
            least |= {"costUsd"} & set(self.at_least)
        return Usage(**figures, cost_usd=cost, at_least=_in_order(least))


_FIGURES = tuple(name for name in Usage.model_fields if name != "at_least")
_COUNTS = tuple(name for name in _FIGURES if name != "cost_usd")
UNTOLD = Usage().model_copy(update=dict.fromkeys(_COUNTS))
"""The usage of a run without known figures: its program has given none yet."""


def _in_order(names: set[str]) -> tuple[str, ...]:
    """Return names of figures as a file has them."""
    return tuple(to_camel(name) for name in _FIGURES if to_camel(name) in names)
