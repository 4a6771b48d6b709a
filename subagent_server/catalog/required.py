"""Find likely mistakes in an output schema that is valid by the rules of JSON Schema.

A name in `required` that `properties` lacks is probably misspelt, and at worst no result fits. A misspelt
keyword is ignored by every validator.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice

from subagent_server.catalog.problems import Notes
from subagent_server.domain.definitions import JsonSchema
from subagent_server.domain.errors import shorten

_MOST_NAMED = 5
_MOST_COMPARED = 80
_LEAST_LIKENESS = 0.85
_RULES = ("properties", "required", "additionalProperties", "patternProperties", "items", "enum", "const")
_ELSEWHERE = frozenset({"allOf", "anyOf", "oneOf", "$ref", "$dynamicRef", "if", "patternProperties"})
"""Keywords beside `properties` that may describe the name."""


@dataclass(frozen=True)
class _Place:
    """A schema within the schema. A value that has to be there makes the whole schema impossible with it."""

    schema: Mapping[str, object]
    path: str
    is_needed: bool


def note_required(key: str, schema: JsonSchema, line: int | None, notes: Notes) -> None:
    """Note misspelt keywords, and names that are required and not described.

    A name is a fault if no result can fit because of it, else a warning.
    """
    if isinstance(schema, bool):
        return
    for place in _places(_Place(schema, "its root", is_needed=True)):
        for word, rule in _misspelt(place.schema):
            told = f"at {place.path} {shorten(word)} is no keyword, and means nothing"
            notes.warn(f"{key}: {told} (nearest: {rule})", line)
    mistakes = (
        (place, name)
        for place in _places(_Place(schema, "its root", is_needed=True))
        for name in _lacking(place)
    )
    for place, name in islice(mistakes, _MOST_NAMED):
        near = _nearest(name, place.schema)
        meant = f" (nearest: {near})" if near else ""
        if place.schema.get("additionalProperties") is not False:
            if near:
                notes.warn(
                    f"{key}: at {place.path} required names {shorten(name)}{meant}, and properties does not",
                    line,
                )
        elif place.is_needed:
            notes.fault(f"{key}: no result fits, because {_told(place, name)}{meant}: name it in both", line)
        else:
            notes.warn(f"{key}: {_told(place, name)}{meant}", line)


def _misspelt(schema: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield the probably misspelt keywords of a schema, each with the keyword that is meant."""
    lacking = [rule for rule in _RULES if rule not in schema]
    for word in islice(schema, _MOST_COMPARED):
        if word not in _RULES and (
            near := get_close_matches(word[:_MOST_COMPARED], lacking, 1, _LEAST_LIKENESS)
        ):
            yield word, near[0]


def _told(place: _Place, name: str) -> str:
    rule = "which properties lacks and additionalProperties forbids"
    return f"at {place.path} required names {shorten(name)}, {rule}"


def _lacking(place: _Place) -> Iterator[str]:
    required, known = place.schema.get("required"), _properties(place.schema)
    is_closed = place.schema.get("additionalProperties") is False
    if not isinstance(required, list) or not (known or is_closed):
        return
    if "patternProperties" in place.schema or (not is_closed and _ELSEWHERE & place.schema.keys()):
        return
    yield from (name for name in required if isinstance(name, str) and name not in known)


def _places(place: _Place) -> Iterator[_Place]:
    """Yield a schema and the schemas below it, as far as a value has to fit them."""
    yield place
    required = place.schema.get("required")
    needed = set(map(str, required)) if isinstance(required, list) else set()
    for name, child in _properties(place.schema).items():
        yield from _below(place, child, f"properties/{name}", is_needed=name in needed)
    for key in ("items", "additionalProperties"):
        yield from _below(place, place.schema.get(key), key, is_needed=False)
    for key in ("allOf", "anyOf", "oneOf", "prefixItems"):
        children = place.schema.get(key)
        for number, child in enumerate(children if isinstance(children, list) else []):
            yield from _below(place, child, f"{key}/{number}", is_needed=key == "allOf")
    definitions = place.schema.get("$defs")
    for name, child in definitions.items() if isinstance(definitions, dict) else ():
        yield from _below(place, child, f"$defs/{name}", is_needed=False)


def _below(place: _Place, child: object, step: str, *, is_needed: bool) -> Iterator[_Place]:
    if isinstance(child, dict):
        path = step if place.path == "its root" else f"{place.path}/{step}"
        is_object = child.get("type", "object") == "object"
        yield from _places(_Place(child, path, is_needed=place.is_needed and is_needed and is_object))


def _properties(schema: Mapping[str, object]) -> dict[str, object]:
    properties = schema.get("properties")
    return properties if isinstance(properties, dict) else {}


def _nearest(name: str, schema: Mapping[str, object]) -> str | None:
    near = get_close_matches(name[:_MOST_COMPARED], list(_properties(schema))[:200], 1)
    return shorten(near[0]) if near else None
