"""The web tools that an agent may use: what its `tools` name, and the bounds that its file gives. Pure."""

from subagent_server.domain.definitions import AgentDefinition, WebFetchBounds, WebOffer, WebSearchBounds


def web_offer(agent: AgentDefinition) -> WebOffer:
    """Return the web tools that the selection of an agent leaves."""
    selection = agent.selection
    search = (agent.web_search or WebSearchBounds()) if selection.web_search else None
    fetch = (agent.web_fetch or WebFetchBounds()) if selection.web_fetch else None
    if fetch is not None and selection.fetch_domains:
        domains = _narrowed(selection.fetch_domains, fetch.allowed_domains)
        if fetch.blocked_domains:
            return WebOffer(search, fetch, _BOTH)
        if not domains:
            return WebOffer(search, fetch, _NONE_LEFT)
        fetch = fetch.model_copy(update={"allowed_domains": domains})
    offer = WebOffer(search, fetch)
    if offer.names and not agent.network:
        named = " and ".join(_NAMED[name] for name in offer.names)
        return WebOffer(search, fetch, _NO_NETWORK.format(named=named))
    return offer


_NAMED = {"web_search": "WebSearch", "web_fetch": "WebFetch"}
_BOTH = (
    "WebFetch(domain:...) in tools and webFetch.blockedDomains cannot both be kept: give the domains that "
    "are allowed, or those that are not."
)
_NONE_LEFT = (
    "The domains of WebFetch(domain:...) in tools and those of webFetch.allowedDomains have none in common: "
    "name the same domains in both, or give one of them."
)
_NO_NETWORK = (
    "network is false, and {named} in tools reach the web by way of the API: take them out of tools, or "
    "allow the network."
)


def _narrowed(named: list[str], allowed: list[str] | None) -> list[str]:
    """Return the domains that lie in both lists; without a second one, the first."""
    if not allowed:
        return named
    common = [d for d in named if any(_lies_in(d, other) for other in allowed)]
    common += [d for d in allowed if any(_lies_in(d, other) for other in named)]
    return list(dict.fromkeys(common))


def _lies_in(domain: str, other: str) -> bool:
    """Whether all that `domain` allows is allowed by `other`: a subdomain, or a path below."""
    return domain == other or domain.endswith(f".{other}") or domain.startswith(f"{other.rstrip('/')}/")
