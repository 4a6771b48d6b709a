"""The web tools of a run, which the Messages API itself runs: offered, counted over the run, and noted.

The API bounds the uses of one request (`max_uses`). The limit of an agent file is that of the whole run. The
definitions stay the same at every request, because another list of tools costs the prompt cache; a tool whose
uses are gone is left out from then on, and the model is told.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from subagent_server.domain.definitions import WebOffer
from subagent_server.domain.errors import RunRefused
from subagent_server.domain.records import WebSource
from subagent_server.runners.messages.web_results import SERVER_CALL, pending_calls, sources_of

Block = dict[str, Any]
Message = dict[str, Any]

MOST_SOURCES = 100
_WORDS = {"web_search": "web searches", "web_fetch": "fetches of web pages"}
_REFUSALS = (400, 403, 404, 422)
_PLACE = re.compile(r"tools\.(\d+)\b")
_KEYS = {"web_search": "webSearch.maxUses", "web_fetch": "webFetch.maxUses"}


_TYPES = {"web_search": "web_search_20250305", "web_fetch": "web_fetch_20250910"}
"""The versions that every model has: without filtering of results by programs of the model."""


@dataclass
class WebTools:
    """The definitions of the web tools of a run by their names, and how often each may be used."""

    offered: Sequence[Block] = ()
    limits: Mapping[str, int] = field(default_factory=dict)
    used: Counter[str] = field(default_factory=Counter)
    _found: dict[str, tuple[int, WebSource]] = field(default_factory=dict)
    _announced: set[str] = field(default_factory=set)
    _has_gone_on: bool = False

    def definitions(self, messages: Sequence[Message]) -> list[Block]:
        """Return the entries of `tools` for the next request.

        A reply that the API has not finished goes on with the tools that it began with.
        """
        if messages and messages[-1]["role"] == "assistant":
            return list(self.offered)
        going_on = {str(call.get("name")) for call in pending_calls(messages)}
        return [t for t in self.offered if t["name"] in going_on or t["name"] not in self._spent]

    def take(self, content: Sequence[Block]) -> None:
        """Count the uses in a reply, and keep the pages that it names."""
        self.used.update(str(b.get("name")) for b in content if b.get("type") == SERVER_CALL)
        for rank, source in sources_of(content):
            known = self._found.get(source.url)
            if known is None and len(self._found) >= 10 * MOST_SOURCES:
                continue
            if known is None or rank < known[0]:
                self._found[source.url] = (rank, source)

    def notices(self) -> list[Block]:
        """Return what the model has to hear of limits that its uses have reached, each once."""
        new = [name for name in self._spent if name not in self._announced]
        self._announced.update(new)
        return [{"type": "text", "text": self._notice(name)} for name in new]

    def check_pause(self) -> None:
        """Called when the API pauses a reply. With the uses gone it goes on once, to come to an end.

        Raises:
            RunRefused: `budget`, it was paused again.
        """
        if not self._spent:
            return
        if self._has_gone_on:
            name = self._spent[0]
            raise RunRefused(
                "budget",
                f"The agent has used {self.used[name]} {_WORDS[name]} of {self.limits[name]}, and goes on.",
                f"Raise `{_KEYS[name]}` in the agent file, or give it a smaller task.",
            )
        self._has_gone_on = True

    def most_cost(self, search: Decimal) -> Decimal:
        """Return what the searches of the next request may cost, at the price of one `search`."""
        if not any(tool["name"] == "web_search" for tool in self.offered):
            return Decimal(0)
        return search * max(0, self.limits["web_search"] - self.used["web_search"])

    @property
    def sources(self) -> list[WebSource]:
        """The pages that the replies have cited, then those that were read, then those that were found."""
        ranked = sorted(self._found.values(), key=lambda found: found[0])
        return [source for _, source in ranked[:MOST_SOURCES]]

    @property
    def _spent(self) -> list[str]:
        return [name for name, limit in self.limits.items() if self.used[name] >= limit]

    def _notice(self, name: str) -> str:
        return (
            f"This run may make {self.limits[name]} {_WORDS[name]}, and all are used: go on without {name}, "
            "with what you have found."
        )


def make_web_tools(offer: WebOffer) -> WebTools:
    """Return the web tools of a run. The bound of uses of the run bounds each of its requests too."""
    bounds = {"web_search": offer.search, "web_fetch": offer.fetch}
    offered: list[Block] = []
    for name, bound in bounds.items():
        if bound is not None:
            keys = bound.model_dump(by_alias=False, exclude_none=True)
            offered.append({"type": _TYPES[name], "name": name, **keys})
    return WebTools(offered, {name: bound.max_uses for name, bound in bounds.items() if bound is not None})


def refuses_web_tools(status: int, said: str, tools: Sequence[Mapping[str, Any]]) -> bool:
    """Whether an API that answers so does not take the web tools among the `tools` of a request."""
    is_web = ["type" in tool and tool["name"] in _WORDS for tool in tools]
    if status not in _REFUSALS or not any(is_web) or said.startswith("messages."):
        return False
    place = _PLACE.search(said)
    if place is not None:
        return int(place[1]) < len(is_web) and is_web[int(place[1])]
    words = re.sub(r"[_-]", " ", said.lower())
    return any(name.replace("_", " ") in words for name in _WORDS) or "server tool" in words
