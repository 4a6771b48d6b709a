"""The keys of agent files, and how they may be spelled.

`maxTurns`, `max_turns`, `max-turns` and `MaxTurns` are the same key. Which keys exist follows from the fields
of the domain's definitions, so a new field needs no second list here.
"""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import cache

from pydantic import BaseModel
from pydantic.alias_generators import to_camel

from subagent_server.domain.definitions import (
    AgentDefinition,
    CodeMode,
    Limits,
    SandboxLimits,
    ServerDefinition,
)

_NOT_FOR_FILES = frozenset(
    {
        *("source", "distinct_tool", "by_contract", "faults", "warnings", "unknown", "named_servers"),
        *("read_from", "lines", "permission_mode", "verdict"),
    }
)
_FILES_ONLY = ("system_prompt_path", "output_schema_path")


def canonical(key: str) -> str:
    """Return the form in which two spellings of one key are equal."""
    return key.replace("-", "").replace("_", "").lower()


@cache
def camel(field: str) -> str:
    """Return the spelling that people are shown."""
    return to_camel(field)


def table(fields: Iterable[str]) -> Mapping[str, str]:
    """Return canonical spelling -> field name."""
    return {canonical(field): field for field in fields}


def fields_of(kind: type[BaseModel]) -> Mapping[str, str]:
    """Return the keys of one part of a definition: canonical spelling -> field name."""
    return table(kind.model_fields)


LIMIT_FIELDS = fields_of(Limits)
AGENT_FIELDS = {
    **table([*(f for f in AgentDefinition.model_fields if f not in _NOT_FOR_FILES), *_FILES_ONLY]),
    "allowedtools": "tools",
}
"""`allowed-tools` is what skills of Claude Code call it."""

_KEYS_OF_PARTS: Mapping[str, Mapping[str, str]] = {
    "": {**LIMIT_FIELDS, **AGENT_FIELDS},
    "limits": LIMIT_FIELDS,
    "codeMode": fields_of(CodeMode),
    "mcpServers": fields_of(ServerDefinition),
    "sandboxLimits": fields_of(SandboxLimits),
}
_MOST_COMPARED = 60
_LEAST_LIKENESS = 0.8

_CLAUDE_CODE = frozenset(
    canonical(key) for key in ("background", "color", "initialPrompt", "memory", "permissionMode", "skills")
)
_ELSEWHERE = frozenset(
    canonical(key)
    for key in (
        "argument-hint",
        "author",
        "category",
        "icon",
        "license",
        "metadata",
        "mode",
        "priority",
        "tags",
        "temperature",
        "type",
        "version",
    )
)


def is_ours(key: str) -> bool:
    """Whether `key`, in any spelling, means something here."""
    form = canonical(key)
    return form in AGENT_FIELDS or form in LIMIT_FIELDS


def is_surely_a_key(key: str) -> bool:
    """Whether a line `key: ...` is a key even if prose runs on at the margin."""
    return key[0].islower() and (is_ours(key) or canonical(key) in _CLAUDE_CODE)


def nearest_key(key: str) -> str | None:
    """Return the key that was probably meant by an unknown one, which is given with the part it stands in."""
    part, _, name = key.rpartition(".")
    form = canonical(name)[:_MOST_COMPARED]
    if form in _CLAUDE_CODE or form in _ELSEWHERE:
        return None
    known = _KEYS_OF_PARTS.get(part.partition(".")[0], {})
    near = get_close_matches(form, known, 1, _LEAST_LIKENESS)
    return camel(known[near[0]]) if near else None


def is_known(key: str) -> bool:
    """Whether `key`, in any spelling, is a key of agent files, here or in another tool."""
    return is_ours(key) or canonical(key) in _CLAUDE_CODE or canonical(key) in _ELSEWHERE
