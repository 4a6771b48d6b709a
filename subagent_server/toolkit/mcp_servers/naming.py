"""Names of tools: as the Messages API takes them, and as agent files write them. Pure."""

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from hashlib import sha256

MOST_CHARACTERS = 128
_REFUSED = re.compile(r"[^a-zA-Z0-9_-]")
_DIGEST = 8


def acceptable(name: str) -> str:
    """Return `name` in the characters and the length that the API takes."""
    safe = _REFUSED.sub("_", name) or "tool"
    if len(safe) <= MOST_CHARACTERS:
        return safe
    return f"{safe[: MOST_CHARACTERS - _DIGEST - 1]}_{sha256(name.encode()).hexdigest()[:_DIGEST]}"


def free_name(name: str, taken: Iterable[str]) -> str:
    """Return `name`, with a number behind it if it is taken."""
    every, number, free = set(taken), 1, name
    while free in every:
        number += 1
        free = f"{name[: MOST_CHARACTERS - 4]}_{number}"
    return free


def is_named(patterns: Iterable[str], server: str, tool: str, shown_as: str) -> bool:
    """Whether names of an agent file mean this tool.

    `mcp__<server>` means all of a server, `mcp__<server>__<tool>` one, `*` in it anything, and the name that
    the model sees means it too. Upper and lower case do not matter, nor what becomes `_` in names.
    """
    whole = f"mcp__{_plain(server)}"
    names = {f"{whole}__{_plain(tool)}", f"{whole}__{_plain(shown_as)}", _plain(shown_as)}
    wanted = [_plain(pattern) for pattern in patterns]
    return any(pattern == whole or any(fnmatchcase(name, pattern) for name in names) for pattern in wanted)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9_*-]", "_", name.lower())
