"""Which tools of which servers a run offers to its model, under which names (SPEC section 8). Pure."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

from mcp_types import Tool

from subagent_server.domain.definitions import ServerDefinition
from subagent_server.domain.errors import RunRefused, shorten
from subagent_server.toolkit.mcp_servers.naming import acceptable, free_name, is_named

_MOST_NAMED = 5


@dataclass(frozen=True)
class ToolListing:
    """The answer of a server to `tools/list`, all pages of it."""

    server: str
    definition: ServerDefinition
    tools: Sequence[Tool]


@dataclass(frozen=True)
class Offered:
    """A tool of a server, and the name that the model calls it by."""

    server: str
    tool: Tool
    name: str


@dataclass(frozen=True)
class ToolChoice:
    """The keys `tools` (None: everything) and `disallowedTools` of an agent file, as written.

    `excluded` is `codeMode.excludedTools`, None without code mode.
    """

    tools: Collection[str] | None = None
    disallowed: Collection[str] = ()
    excluded: Collection[str] | None = None

    def includes(self, offered: Offered) -> bool:
        """Whether the run may use this tool."""
        facts = (offered.server, offered.tool.name, offered.name)
        allowed = self.tools is None or is_named(self.tools, *facts)
        return allowed and not is_named(self.disallowed, *facts)

    def is_function(self, offered: Offered) -> bool:
        """Whether programs call this tool, by its server, so that its name alone need not be unique."""
        facts = (offered.server, offered.tool.name, offered.name)
        return self.excluded is not None and not is_named(self.excluded, *facts)


@dataclass
class Offer:
    """The tools of a run's servers, with warnings for the author of the agent."""

    tools: list[Offered] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def passes(definition: ServerDefinition, tool: str) -> bool:
    """Whether `enabledTools` or `disabledTools` of a server let a tool through."""
    if definition.enabled_tools is not None:
        return tool in definition.enabled_tools
    return tool not in (definition.disabled_tools or ())


def unknown_names(listing: ToolListing) -> list[str]:
    """Return a warning for each name in `enabledTools` or `disabledTools` that the server does not have."""
    known = [tool.name for tool in listing.tools]
    warnings: list[str] = []
    for key, names in (
        ("enabledTools", listing.definition.enabled_tools),
        ("disabledTools", listing.definition.disabled_tools),
    ):
        for name in names or ():
            if name not in known:
                warnings.append(
                    f"mcpServers.{listing.server}.{key} names {shorten(name)}, "
                    f"which the server does not offer{_suggestion(name, known)}."
                )
    return warnings


def _suggestion(name: str, known: Sequence[str]) -> str:
    by_lower = {each.lower(): each for each in known}
    near = [by_lower[match] for match in get_close_matches(name.lower(), by_lower, n=3, cutoff=0.6)]
    if near:
        return f" (did you mean {' or '.join(near)}?)"
    shown = ", ".join(known[:10]) + (", ..." if len(known) > 10 else "")
    return f" (it offers {shown})" if known else " (it offers no tools)"


def make_offer(listings: Sequence[ToolListing], wanted: ToolChoice, own: Collection[str]) -> Offer:
    """Return the tools of all servers that the run may use; `own` are the names of its other tools.

    Raises:
        RunRefused: `config`; one name stands for two tools, and the sentence says whose and the way out.
    """
    offer = Offer()
    for listing in listings:
        offer.warnings += unknown_names(listing)
        named = [each for each in _named(listing, offer.warnings) if wanted.includes(each)]
        if listing.tools and not named:
            offer.warnings.append(_unused(listing))
        offer.warnings += [
            _renamed(listing, each)
            for each in named
            if each.name != _prefix(listing) + each.tool.name and not wanted.is_function(each)
        ]
        offer.tools += named
    _check_unique([each for each in offer.tools if not wanted.is_function(each)], own)
    return offer


def _named(listing: ToolListing, warnings: list[str]) -> list[Offered]:
    """Return the tools of one server that its filter lets through, each under its name."""
    prefix = _prefix(listing)
    chosen: dict[str, Offered] = {}
    seen: set[str] = set()
    # A tool keeps its own name, whatever others before it in the list would become.
    exact = {acceptable(prefix + tool.name) for tool in listing.tools if acceptable(tool.name) == tool.name}
    for tool in listing.tools:
        if tool.name in seen:
            warnings.append(f"Server {listing.server} lists {shorten(tool.name)} twice; the first is used.")
            continue
        seen.add(tool.name)
        if not passes(listing.definition, tool.name):
            continue
        name = acceptable(prefix + tool.name)
        if acceptable(tool.name) != tool.name or name in chosen:
            name = free_name(name, chosen.keys() | exact)
        chosen[name] = Offered(listing.server, tool, name)
    return list(chosen.values())


def _prefix(listing: ToolListing) -> str:
    return f"{listing.server}__" if listing.definition.prefix else ""


def _renamed(listing: ToolListing, tool: Offered) -> str:
    whole = shorten(_prefix(listing) + tool.tool.name)
    return (
        f"The tool {whole} of server {listing.server} is called {tool.name} here: "
        "the model's API does not take its name."
    )


def _unused(listing: ToolListing) -> str:
    return (
        f"Server {listing.server} is connected, and the run may use none of its tools: "
        f"name them in `tools` (mcp__{listing.server} for all), or remove the server."
    )


def _check_unique(tools: Sequence[Offered], own: Collection[str]) -> None:
    owners: dict[str, list[str]] = {}
    for each in tools:
        owners.setdefault(each.name, []).append(each.server)
    clashes = [
        _clash(name, servers, own) for name, servers in owners.items() if len(servers) > 1 or name in own
    ]
    if clashes:
        more = f"; and {len(clashes) - _MOST_NAMED} more" if len(clashes) > _MOST_NAMED else ""
        server = next(s[-1] for name, s in owners.items() if len(s) > 1 or name in own)
        raise RunRefused(
            "config",
            f"mcpServers: {'; '.join(clashes[:_MOST_NAMED])}{more}.",
            f"Set `prefix: true` on one of the servers (the tools of {server} become {server}__<tool>), "
            "or leave the tool out with disabledTools.",
        )


def _clash(name: str, servers: Sequence[str], own: Collection[str]) -> str:
    if len(servers) > 1:
        return f"the servers {' and '.join(servers)} both offer a tool {name}"
    return f"the server {servers[0]} offers a tool {name}, and so does the agent itself"
