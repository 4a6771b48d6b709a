"""The keys `webSearch` and `webFetch` of an agent file."""

import re
from typing import TypeVar

from subagent_server.catalog.keys import camel
from subagent_server.catalog.parts import Reading, read_part
from subagent_server.catalog.values import Value
from subagent_server.domain.definitions import WebFetchBounds, WebSearchBounds
from subagent_server.domain.errors import shorten

Bounds = TypeVar("Bounds", WebSearchBounds, WebFetchBounds)

_DOMAIN = re.compile(r"[^\s:/?#*]+\.[^\s:/?#*]+(?:/\S*)?")


def read_web_bounds(kind: type[Bounds], value: Value, where: str, line: int, reading: Reading) -> Bounds:
    """Return the bounds of a web tool; a list of domains that the API would refuse is a fault."""
    bounds = read_part(kind, value, where, line, reading)
    for field in ("allowed_domains", "blocked_domains"):
        domains: list[str] | None = getattr(bounds, field)
        wrong = next((d for d in domains or [] if not _DOMAIN.fullmatch(d)), None)
        if wrong is not None:
            rule = "must be domains such as example.com, without https:// and without *"
            reading.notes.fault(f"{where}.{camel(field)} {rule}, not {shorten(wrong)}", line)
        if domains == []:
            reading.notes.fault(f"{where}.{camel(field)} is empty: name a domain, or leave it out", line)
    if bounds.allowed_domains and bounds.blocked_domains:
        reading.notes.fault(f"{where} has allowedDomains and blockedDomains: give one of them", line)
    return bounds
