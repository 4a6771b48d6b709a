"""The usage of a run so far. `worker/model_calls.py` holds the budgets: it decides before each call."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from subagent_server.domain.records import Usage
from subagent_server.runners.messages.prices import Prices


@dataclass
class UsageMeter:
    """Adds up tokens, turns and money. Without `prices` the cost is unknown."""

    prices: Prices | None = None
    usage: Usage = field(default_factory=Usage)

    @property
    def turns(self) -> int:
        """How many turns there have been."""
        return self.usage.turns or 0

    def charge(self, used: Mapping[str, int]) -> None:
        """Add the token counts of one call of the API; a reply that broke off costs too."""
        if not used:
            return
        self.usage = self.usage.plus(
            Usage(
                input_tokens=used.get("input_tokens", 0),
                output_tokens=used.get("output_tokens", 0),
                cache_read_tokens=used.get("cache_read_input_tokens", 0),
                cache_write_tokens=used.get("cache_creation_input_tokens", 0),
                web_searches=used.get("web_search_requests", 0),
                web_fetches=used.get("web_fetch_requests", 0),
                cost_usd=self.prices.cost(used).normalize() if self.prices else None,
            )
        )

    def count_turn(self, tool_calls: int) -> None:
        """Add a whole reply with its calls."""
        free = None if self.usage.cost_usd is None else Decimal(0)  # the tokens are what costs
        self.usage = self.usage.plus(Usage(turns=1, tool_calls=tool_calls, cost_usd=free))
