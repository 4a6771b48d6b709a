"""The cost of a model call, from the list prices that the library `genai-prices` keeps (no network)."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, Provider

_PROVIDER = "anthropic"


@dataclass(frozen=True)
class Prices:
    """The list prices of one model. Tiers count: each call is priced by itself, never a sum of calls."""

    _provider: "Provider"
    _model: "ModelInfo"

    @property
    def context_window(self) -> int | None:
        """How many tokens a request may have, if the list says it."""
        return self._model.context_window

    def cost(self, usage: Mapping[str, int]) -> Decimal:
        """Return the cost in USD of one call with this `usage`, the figures of the Messages API."""
        from genai_prices import Usage

        read = usage.get("cache_read_input_tokens", 0)
        written = usage.get("cache_creation_input_tokens", 0)
        for_an_hour = min(written, usage.get("ephemeral_1h_input_tokens", 0))
        tokens = Usage(
            input_tokens=usage.get("input_tokens", 0) + read + written,
            cache_read_tokens=read,
            cache_write_tokens=written,
            cache_write_1h_tokens=for_an_hour,
            output_tokens=usage.get("output_tokens", 0),
            web_searches=usage.get("web_search_requests", 0),
        )
        return self._model.calc_price(tokens, self._provider).total_price

    @property
    def web_search(self) -> Decimal:
        """The cost in USD of one web search, without the tokens of its results."""
        return self.cost({"web_search_requests": 1}) - self.cost({})


def find_prices(model: str) -> Prices | None:
    """Return the prices of a model, or None if the list does not know it.

    The library is imported here: only a worker that is about to call a model pays for it.
    """
    from genai_prices.data_snapshot import get_snapshot

    try:
        provider, known = get_snapshot().find_provider_model(model, None, _PROVIDER, None)
    except LookupError:
        return None
    return Prices(provider, known)
