"""The input schema of an MCP tool as the Messages API takes it, and the way back for the arguments. Pure.

The API wants an object at the root, with no `anyOf`, `oneOf`, `allOf` or `$ref` there, and properties whose
names are of few characters. So the root is flattened: it allows what one of the alternatives allows, and the
server, which knows its own rules, judges the rest.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from subagent_server.toolkit.mcp_servers.schema_repair import repaired, resolved, without_dead_references

_PROPERTY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_CHOICES = ("anyOf", "oneOf", "allOf")
_DEEPEST = 20
_MOST_PARTS = 1_000
"""At the root, references followed: a few that multiply would take for ever."""
_LONGEST_RULE = 2_000


@dataclass(frozen=True)
class InputSchema:
    """The schema for the model. `names` maps property names in it to those of the server, if they differ.

    `rule` is the constraint that the flattened root lost, for the description; empty if it lost none.
    """

    schema: dict[str, Any]
    names: dict[str, str] = field(default_factory=dict)
    rule: str = ""

    def for_server(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call as the server knows them."""
        return {self.names.get(name, name): value for name, value in arguments.items()}


def input_schema(given: Any) -> InputSchema:
    """Return the schema `given` in a form that the Messages API takes."""
    root = unpacked(given) if isinstance(given, dict) else {}
    whole = repaired(root)
    whole = without_dead_references(whole, whole)
    flat = _flat(whole, whole, _DEEPEST, count())
    flat["type"] = "object"
    names = _rename(flat)
    # the shape has changed, so a reference into the root may lead elsewhere now
    return InputSchema(without_dead_references(flat, flat), names, _rule(whole))


def unpacked(given: dict[str, Any]) -> dict[str, Any]:
    """Return the whole schema that some servers put into `properties` by mistake, else the schema `given`."""
    inner = given.get("properties")
    if not isinstance(inner, dict) or inner.get("type") != "object":
        return given
    return inner if isinstance(inner.get("properties"), dict) else given


# -- the root


def _flat(schema: Any, root: dict[str, Any], depth: int, parts: Iterator[int]) -> dict[str, Any]:
    """Return an object schema that allows at least what `schema` allows, with no choice at its root.

    `parts` counts the calls.
    """
    if not isinstance(schema, dict) or depth == 0 or next(parts) > _MOST_PARTS:
        return {}
    flat = {key: value for key, value in schema.items() if key not in (*_CHOICES, "$ref")}
    if isinstance(reference := schema.get("$ref"), str):
        _add(flat, _flat(resolved(reference, root), root, depth - 1, parts))
    for part in schema.get("allOf", []):
        _add(flat, _flat(part, root, depth - 1, parts))
    for choice in ("anyOf", "oneOf"):
        branches = [_flat(branch, root, depth - 1, parts) for branch in schema.get(choice, [])]
        if branches:
            _add(flat, _either(branches))
    return flat


def _add(flat: dict[str, Any], more: dict[str, Any]) -> None:
    """Add the constraints of `more` to `flat`."""
    properties = flat.setdefault("properties", {})
    for name, schema in more.get("properties", {}).items():
        known = properties.setdefault(name, schema)
        if known != schema:
            properties[name] = {"allOf": [known, schema]}
    flat["required"] = list(dict.fromkeys([*flat.get("required", []), *more.get("required", [])]))
    if flat.get("additionalProperties") is False and "additionalProperties" not in more:
        return
    for key, value in more.items():
        flat.setdefault(key, value)


def _either(branches: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the properties of all branches, and those that every branch requires."""
    properties: dict[str, list[Any]] = {}
    for branch in branches:
        for name, schema in branch.get("properties", {}).items():
            seen = properties.setdefault(name, [])
            if schema not in seen:
                seen.append(schema)
    needed = [name for name in branches[0].get("required", []) if all(_needs(b, name) for b in branches)]
    joined = {name: seen[0] if len(seen) == 1 else {"anyOf": seen} for name, seen in properties.items()}
    return {"properties": joined, "required": needed}


def _needs(branch: dict[str, Any], name: str) -> bool:
    return name in branch.get("required", [])


def _rule(whole: dict[str, Any]) -> str:
    """Return the choice that the root had, as text for the model."""
    choice = {key: whole[key] for key in ("anyOf", "oneOf") if key in whole}
    text = json.dumps(choice, ensure_ascii=False, separators=(",", ":")) if choice else ""
    return text if len(text) <= _LONGEST_RULE else ""


# -- the names of properties


def _rename(flat: dict[str, Any]) -> dict[str, str]:
    """Give properties names that the API takes, in place; return the original names by the new ones."""
    properties: dict[str, Any] = flat.get("properties") or {}
    new = {name: name for name in properties if _PROPERTY.fullmatch(name)}
    for name in properties:
        if name not in new:
            new[name] = _free_name(name, set(new.values()))
    if "properties" in flat:
        flat["properties"] = {new[name]: schema for name, schema in properties.items()}
    if "required" in flat:
        flat["required"] = [new.get(name, name) for name in flat["required"]]
    return {ours: theirs for theirs, ours in new.items() if ours != theirs}


def _free_name(name: str, taken: set[str]) -> str:
    base = re.sub(r"[^a-zA-Z0-9_.-]", "_", name)[:60] or "property"
    number, free = 1, base
    while free in taken:
        number += 1
        free = f"{base}_{number}"
    return free
