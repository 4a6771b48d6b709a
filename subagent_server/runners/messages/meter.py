"""What a run has used so far, and the limit of its money (SPEC section 3, `budgetUsd`)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from subagent_server.domain.errors import RunRefused
from subagent_server.domain.money import dollars
from subagent_server.domain.records import Usage
from subagent_server.runners.messages.prices import Prices


@dataclass
class Purse:
    """Adds up tokens, turns and money. Without `prices` nothing is known of the money."""

    prices: Prices | None = None
    budget_usd: Decimal | None = None
    usage: Usage = field(default_factory=Usage)

    def charge(self, told: Mapping[str, int]) -> None:
        """Add what one call of the API was told to have used; a reply that broke off costs too."""
        if not told:
            return
        self.usage = self.usage.plus(
            Usage(
                input_tokens=told.get("input_tokens", 0),
                output_tokens=told.get("output_tokens", 0),
                cache_read_tokens=told.get("cache_read_input_tokens", 0),
                cache_write_tokens=told.get("cache_creation_input_tokens", 0),
                cost_usd=self.prices.cost(told).normalize() if self.prices else None,
            )
        )

    def count_turn(self, tool_calls: int) -> None:
        """Add a whole reply with its calls."""
        self.usage = self.usage.plus(Usage(turns=1, tool_calls=tool_calls))

    def check(self) -> None:
        """Called before each call of the API.

        Raises:
            RunRefused: `budget`, as soon as the money is used up.
        """
        spent = self.usage.cost_usd or Decimal(0)
        if self.budget_usd is not None and spent >= self.budget_usd:
            raise RunRefused(
                "budget",
                f"The agent used {dollars(spent)} of its budget of {dollars(self.budget_usd)}.",
                "Raise `budgetUsd` in the agent file, or give it a smaller task.",
            )
