"""Read a part of a file into its typed form; each mistake in it is reported by itself.

A value not allowed for its key is a fault naming key and value, and the rest is read as if the key were not
there: a single wrong number does not hide an agent.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from pydantic import ValidationError

from subagent_server.catalog.keys import camel, canonical, fields_of, nearest_key
from subagent_server.catalog.problems import Notes
from subagent_server.catalog.values import (
    Block,
    Value,
    WrongValue,
    as_json,
    as_names,
    as_places,
    as_text_tree,
    is_null,
)
from subagent_server.domain.errors import shorten
from subagent_server.domain.records import Record

Part = TypeVar("Part", bound=Record)

NAME_LISTS = frozenset(
    {"tools", "disallowed_tools", "ask", "agents", "excluded_tools", "enabled_tools", "disabled_tools"}
    | {"allowed_domains", "blocked_domains"}
)
CHOICES = frozenset({"type", "runner", "effort", "sandbox", "isolation", "on_ask_timeout"})
_PRIVATE = frozenset({"env", "headers", "args", "url", "command", "api_key_env"})
_LEAST: Mapping[str, float] = {
    "memory_bytes": 1,
    "processes": 1,
    "file_bytes": 1,
    "max_timeout_seconds": 1,
    "timeout": 0,
    "call_timeout_seconds": 0,
    "budget_usd": 0,
}


@dataclass
class Draft:
    """The values of a part during reading: by field name, with the line of each key."""

    where: str = ""
    values: dict[str, object] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)

    def name(self, key: str) -> str:
        """Return the key as people know it, with its part: `limits.maxTurns`."""
        return f"{self.where}.{camel(key)}" if self.where else camel(key)


@dataclass
class Reading:
    """The notes on one file besides its values: mistakes, unknown keys, and the lines of its servers."""

    notes: Notes
    unknown: dict[str, object] = field(default_factory=dict)
    named_servers: list[str] = field(default_factory=list)
    lines: dict[str, int] = field(default_factory=dict)
    unknown_line: int | None = None

    def keep_unknown(self, key: str, value: Value, line: int | None) -> None:
        """Remember an unknown key; `report_unknown` reports all of them at once."""
        self.unknown[key] = as_json(value)
        self.unknown_line = self.unknown_line or line

    def report_unknown(self) -> None:
        """Give a single warning naming every unknown key, on the line of the first."""
        if self.unknown:
            keys = ", ".join(_with_nearest(key) for key in list(self.unknown)[:20])
            more = ", ..." if len(self.unknown) > 20 else ""
            self.notes.warn(f"unknown keys are kept and not used: {keys}{more}", self.unknown_line)


def _with_nearest(key: str) -> str:
    near = nearest_key(key)
    return shorten(key, 60) + (f" (nearest: {near})" if near else "")


def read_part(kind: type[Part], value: Value, where: str, line: int | None, reading: Reading) -> Part:
    """Return a part whose fields are all plain (limits, a server, code mode) from the mapping of its keys."""
    draft = Draft(where)
    if isinstance(value, Block):
        fill(draft, value, fields_of(kind), reading)
    elif not is_null(value):
        reading.notes.fault(f"{where} must be a mapping of keys", line)
    return validated(kind, draft, reading.notes, line)


def fill(draft: Draft, block: Block, fields: Mapping[str, str], reading: Reading) -> None:
    """Put every key of `block` listed in `fields` into `draft`; the others are unknown."""
    for key, value in block.items():
        name = fields.get(canonical(key))
        if name is None:
            reading.keep_unknown(f"{draft.where}.{key}" if draft.where else key, value, block.lines.get(key))
        elif not is_null(value):
            put(draft, name, value, block.lines.get(key), reading.notes)


def put(draft: Draft, name: str, value: Value, line: int | None, notes: Notes) -> None:
    """Put a value into `draft`, as names or as text; a second value for a field is a fault."""
    if name in draft.values:
        notes.fault(f"{draft.name(name)} is given twice, so say it once", line)
        return
    try:
        draft.values[name] = _content(name, value)
    except WrongValue as error:
        notes.fault(f"{draft.name(name)} {error}", line)
    if line is not None:
        draft.lines[name] = line


def _content(name: str, value: Value) -> object:
    if name in NAME_LISTS:
        return as_names(value)
    if name in ("sandbox_read", "sandbox_write"):
        return as_places(value)
    content = as_text_tree(value)
    return content.strip().lower() if name in CHOICES and isinstance(content, str) else content


def validated(kind: type[Part], draft: Draft, notes: Notes, line: int | None = None) -> Part:
    """Return the part described by `draft`, without forbidden values; each of these is a fault."""
    while True:
        try:
            part = kind.model_validate(draft.values)
            wrong = _out_of_range(part, draft)
        except ValidationError as error:
            wrong = _in_plain_words(error, draft)
        if not wrong:
            return part
        for name, reason in wrong.items():
            notes.fault(f"{draft.name(name)} {reason}", draft.lines.get(name, line))
            del draft.values[name]


def _out_of_range(part: Record, draft: Draft) -> dict[str, str]:
    wrong: dict[str, str] = {}
    for name in draft.values:
        value = getattr(part, name)
        if isinstance(value, float) and not math.isfinite(value):
            wrong[name] = "must be a finite number"
        elif value is not None and name in _LEAST and value < _LEAST[name]:
            wrong[name] = f"must be at least {_LEAST[name]}, not {value}"
    return wrong


def _in_plain_words(error: ValidationError, draft: Draft) -> dict[str, str]:
    names = {camel(name): name for name in draft.values}
    wrong: dict[str, str] = {}
    for detail in error.errors(include_url=False):
        at = [str(step) for step in detail["loc"]]
        name = names.get(at[0], at[0])
        inner = "".join(f" at {step!r}" for step in at[1:2])
        rule = detail["msg"].replace("Input should", "must").partition(", unable")[0]
        given = detail["input"]
        shows = isinstance(given, str) and name not in _PRIVATE
        wrong.setdefault(name, f"{rule}{inner}{f', not {shorten(given)}' if shows else ''}")
    return wrong


def report_repeated(value: Value, where: str, notes: Notes) -> None:
    """Give a fault for each repeated key of a mapping, at any depth of `value`."""
    if isinstance(value, list):
        for item in value:
            report_repeated(item, where, notes)
    if not isinstance(value, Block):
        return
    for key, line in value.repeated.items():
        first = value.lines[key]
        notes.fault(f"{where}.{key} is given twice (first on line {first}), so say it once", line)
    for key, item in value.items():
        report_repeated(item, f"{where}.{key}", notes)
