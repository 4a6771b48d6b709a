"""The input schema of an MCP tool as the Messages API takes it, and the way back for the arguments. Pure.

The API wants an object at the root, with no `anyOf`, `oneOf`, `allOf` or `$ref` there, and properties whose
names are of few characters. So the root is flattened: it allows what one of the alternatives allows, and the
server, which knows its own rules, judges the rest.
"""

import json
import re
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, count
from typing import Any
from urllib.parse import unquote

from subagent_server.run.schemas import compiled

# -- Schemas of MCP servers as well-formed JSON Schema 2020-12, which the Messages API requires. Pure.
#
# Keywords of earlier drafts are translated. A keyword whose value no draft allows is left out, so that one
# mistake of a server costs one constraint and never the tool.


DEAD_REFERENCE = "a reference that leads nowhere"
"""The comment in a schema that has lost a reference."""
_TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
_DROP = object()
_FOREIGN = frozenset({"$schema", "$id", "$vocabulary", "$recursiveRef", "$recursiveAnchor", "id"})
"""Keywords for the dialect or document that a schema belongs to: here it belongs to a tool."""


def repaired(schema: Any) -> Any:
    """Return a well-formed copy of `schema`; a value that is not a schema becomes `{}` (anything)."""
    if isinstance(schema, bool):
        return schema
    if not isinstance(schema, dict):
        return {"type": schema} if schema in _TYPES else {}
    good: dict[str, Any] = {}
    for key, value in _modern(schema).items():
        kept = _RULES.get(key, _json)(value)
        if kept is not _DROP:
            good[key] = kept
    patterns = schema.get("patternProperties")
    if isinstance(patterns, dict) and len(good["patternProperties"]) < len(patterns):
        good.pop("additionalProperties", None)  # it would forbid what the lost pattern allows
    return good


def resolved(reference: str, root: dict[str, Any]) -> Any:
    """Return the target of a reference within `root`, None if it has none there."""
    if reference == "#":
        return root
    if not reference.startswith("#/"):
        return None
    target: Any = root
    for step in reference[2:].split("/"):
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(target, dict) and name not in target:
            name = unquote(name)
        if isinstance(target, list) and re.fullmatch("[0-9]{1,9}", name) and int(name) < len(target):
            target = target[int(name)]
        elif isinstance(target, dict) and name in target:
            target = target[name]
        else:
            return None
    return target


def without_dead_references(schema: Any, root: dict[str, Any]) -> Any:
    """Return a copy of `schema` with a comment instead of references that have no target within `root`."""
    if isinstance(schema, list):
        return [without_dead_references(item, root) for item in schema]
    if not isinstance(schema, dict):
        return schema
    alive = {
        key: without_dead_references(value, root)
        for key, value in schema.items()
        if key not in ("$ref", "$dynamicRef")
        or not isinstance(value, str)
        or isinstance(resolved(value, root), dict | bool)
    }
    return alive if len(alive) == len(schema) else {**alive, "$comment": DEAD_REFERENCE}


def _modern(schema: dict[str, Any]) -> dict[str, Any]:
    """Translate keywords of drafts 4 to 7 into those of 2020-12."""
    modern = {key: value for key, value in schema.items() if key not in _FOREIGN}
    if isinstance(items := modern.get("items"), list):
        rest = modern.pop("additionalItems", None)
        del modern["items"]
        modern |= ({"prefixItems": items} if items else {}) | ({} if rest is None else {"items": rest})
    for bound in ("Minimum", "Maximum"):
        exclusive, plain = f"exclusive{bound}", bound.lower()
        if modern.get(exclusive) is True and plain in modern:
            modern[exclusive] = modern.pop(plain)
    return modern


# -- the values of keywords


def _type(value: Any) -> Any:
    names = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    known = [name.lower() for name in names if isinstance(name, str) and name.lower() in _TYPES]
    if not known or len(known) < len(names):
        return _DROP
    return known[0] if isinstance(value, str) else list(dict.fromkeys(known))


def _schemas(value: Any) -> Any:
    return [repaired(item) for item in value] if isinstance(value, list) and value else _DROP


def _named_schemas(value: Any) -> Any:
    return {str(name): repaired(item) for name, item in value.items()} if isinstance(value, dict) else _DROP


def _names(value: Any) -> Any:
    if not isinstance(value, list):
        return _DROP
    return list(dict.fromkeys(name for name in value if isinstance(name, str)))


def _names_by_name(value: Any) -> Any:
    if not isinstance(value, dict):
        return _DROP
    return {name: names for name, schema in value.items() if (names := _names(schema)) is not _DROP}


def _dependencies(value: Any) -> Any:
    if not isinstance(value, dict):
        return _DROP
    return {name: _names(each) if isinstance(each, list) else repaired(each) for name, each in value.items()}


def _pattern(value: Any) -> Any:
    """Keep a pattern that Python reads, too: the API may refuse one for JavaScript alone (`\\p{L}`)."""
    if not isinstance(value, str):
        return _DROP
    try:
        compiled(value)
    except ValueError:
        return _DROP
    return value


def _schemas_by_pattern(value: Any) -> Any:
    named = _named_schemas(value)
    return named if named is _DROP else {key: named[key] for key in named if _pattern(key) is not _DROP}


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) <= sys.float_info.max  # an int may be longer than any float


def _number(value: Any) -> Any:
    return value if _is_number(value) else _DROP


def _positive(value: Any) -> Any:
    return value if _is_number(value) and value > 0 else _DROP


def _count(value: Any) -> Any:
    return int(value) if _is_number(value) and value >= 0 and value == int(value) else _DROP


def _json(value: Any) -> Any:
    """Keep what JSON can hold: in Python, `NaN` and `1e999` are numbers, too."""
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return _DROP
    return value


def _only(kind: type, value: Any) -> Any:
    return _json(value) if isinstance(value, kind) else _DROP


def _anchor(value: Any) -> Any:
    fits = isinstance(value, str) and value[:1].isalpha() and value.isascii() and value.isidentifier()
    return value if fits else _DROP


_ONE_SCHEMA = (
    *("items", "additionalProperties", "additionalItems", "contains", "propertyNames", "not"),
    *("if", "then", "else", "unevaluatedItems", "unevaluatedProperties", "contentSchema"),
)
_BY_NAME = ("properties", "$defs", "definitions", "dependentSchemas")
_COUNTS = (
    *("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
    *("minContains", "maxContains"),
)
_TEXTS = (
    *("$ref", "$dynamicRef", "$comment", "title", "description", "format"),
    *("contentEncoding", "contentMediaType"),
)
_RULES: dict[str, Callable[[Any], Any]] = {
    "type": _type,
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), _schemas),
    **dict.fromkeys(_BY_NAME, _named_schemas),
    **dict.fromkeys(_ONE_SCHEMA, repaired),
    "pattern": _pattern,
    "patternProperties": _schemas_by_pattern,
    "required": _names,
    "dependentRequired": _names_by_name,
    "dependencies": _dependencies,
    "multipleOf": _positive,
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _number),
    **dict.fromkeys(_COUNTS, _count),
    **dict.fromkeys(("uniqueItems", "deprecated", "readOnly", "writeOnly"), partial(_only, bool)),
    **dict.fromkeys(("enum", "examples"), partial(_only, list)),
    **dict.fromkeys(_TEXTS, partial(_only, str)),
    **dict.fromkeys(("$anchor", "$dynamicAnchor"), _anchor),
}


PROPERTY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
"""The names of properties that the API takes in the schema of a tool, at its root."""
_CHOICES = ("anyOf", "oneOf", "allOf")
_DEEPEST = 20
_MOST_PARTS = 1_000
"""At the root, references followed: a few that multiply would take for ever."""
_LONGEST_RULE = 2_000
_MOST_OF_NAME = 60


@dataclass(frozen=True)
class InputSchema:
    """The schema for the model. `names` maps property names in it to those of the server, if they differ.

    `rule` is the constraint that the flattened root lost, for the description; empty if it lost none.
    """

    schema: dict[str, Any]
    names: dict[str, str]
    rule: str

    def for_server(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call as the server knows them."""
        return {self.names.get(name, name): value for name, value in arguments.items()}


def input_schema(schema: Any) -> InputSchema:
    """Return `schema` in a form that the Messages API takes."""
    root = unpacked(schema) if isinstance(schema, dict) else {}
    whole = repaired(root)
    whole = without_dead_references(whole, whole)
    flat = _flat(whole, whole, _DEEPEST, count())
    flat["type"] = "object"
    if flat.get("properties") and flat.get("additionalProperties") is not False:
        for name in flat.get("required", []):  # a function of code mode takes what is named here
            flat["properties"].setdefault(name, {})
    names = _rename(flat)
    # the shape has changed, so a reference into the root may lead elsewhere now
    return InputSchema(without_dead_references(flat, flat), names, _rule(whole))


def unpacked(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the whole schema that some servers put into `properties` by mistake, else `schema`."""
    inner = schema.get("properties")
    if not isinstance(inner, dict) or inner.get("type") != "object":
        return schema
    return inner if isinstance(inner.get("properties"), dict) else schema


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
            # Not one within the other: hundreds would be deeper than Python can walk.
            parts = known["allOf"] if isinstance(known, dict) and known.keys() == {"allOf"} else [known]
            properties[name] = {"allOf": [*parts, schema]}
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
    """Rename properties, in place, to names that the API takes; return the original names by the new ones."""
    properties: dict[str, Any] = flat.get("properties") or {}
    new = {name: name for name in properties if PROPERTY.fullmatch(name)}
    taken = set(new)
    for name in properties:
        if name not in new:
            plain = re.sub(r"[^a-zA-Z0-9_.-]", "_", name)[:_MOST_OF_NAME] or "property"
            new[name] = free_name(plain, taken, _MOST_OF_NAME)
            taken.add(new[name])
    if "properties" in flat:
        flat["properties"] = {new[name]: schema for name, schema in properties.items()}
    if "required" in flat:
        flat["required"] = [new.get(name, name) for name in flat["required"]]
    return {ours: theirs for theirs, ours in new.items() if ours != theirs}


def free_name(name: str, taken: Collection[str], most: int | None = None, mark: str = "_") -> str:
    """Return `name`; if it is taken, its beginning of at most so many characters, with a number behind it."""
    numbered = (f"{name[:most]}{mark}{number}" for number in count(2))
    return next(free for free in chain([name], numbered) if free not in taken)
