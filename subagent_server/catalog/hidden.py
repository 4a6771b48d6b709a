"""The secrets in a definition itself, to be kept out of all files of a run (SPEC section 13)."""

import re
from collections.abc import Iterator
from typing import Any

from subagent_server.catalog.redact import redact
from subagent_server.domain.definitions import AgentDefinition
from subagent_server.domain.secrets import MASK

_PATH = re.compile(r"(--?[\w-]+=)?(~|\.{0,2})/\S*")
"""A directory may have a name that looks random, and a conversation without its paths is of no use."""
SHORTEST = 8
"""A shorter value would mask words that only happen to be the same."""


def hidden_values(definition: AgentDefinition) -> set[str]:
    """Return the values that `redact` takes out of `definition`, with the values of expanded variables."""
    whole = definition.model_dump(mode="json", exclude={"output_schema"})
    return {value for value in _hidden(whole, redact(definition)) if len(value) >= SHORTEST}


def _hidden(whole: Any, redacted: Any) -> Iterator[str]:
    if isinstance(whole, dict) and isinstance(redacted, dict):
        for key, value in whole.items():
            yield from _hidden(value, redacted.get(key))
    elif isinstance(whole, list) and isinstance(redacted, list):
        for value, other in zip(whole, redacted, strict=False):
            yield from _hidden(value, other)
    elif isinstance(whole, str) and isinstance(redacted, str) and whole != redacted:
        yield from () if _PATH.fullmatch(whole) else _pieces(whole, redacted)


def _pieces(whole: str, redacted: str) -> Iterator[str]:
    """Return the texts that the mask has replaced."""
    pattern = "(.+?)".join(re.escape(part) for part in redacted.split(MASK))
    match = re.fullmatch(pattern, whole, re.DOTALL)
    yield from (match.groups() if match else [whole])
