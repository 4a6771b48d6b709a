"""Parts of JSON Schemas that may be anything, and two schemas as one. Pure."""

from typing import Any


def joined(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return a schema of the values that both schemas allow, or of more."""
    both = {**other, **one}
    properties = dict(mapping_in(one, "properties"))
    for key, schema in mapping_in(other, "properties").items():
        known = properties.setdefault(key, schema)
        if known != schema:
            properties[key] = {"allOf": [known, schema]}
    if properties:
        both["properties"] = properties
    required = [*list_in(one, "required"), *list_in(other, "required")]
    both["required"] = list(dict.fromkeys(key for key in required if isinstance(key, str)))
    if "items" in one and "items" in other and one["items"] != other["items"]:
        both["items"] = {"allOf": [one["items"], other["items"]]}
    if "enum" in one and "enum" in other:
        allowed = set(map(repr, list_in(other, "enum")))
        both["enum"] = [value for value in list_in(one, "enum") if repr(value) in allowed]
    if "type" in one and "type" in other:
        both["type"] = _common_types(set(types_of(one)), set(types_of(other)))
    return both


def _common_types(one: set[str], other: set[str]) -> list[str]:
    whole = {"integer"} if "integer" in one ^ other and "number" in one ^ other else set()
    return sorted((one & other) | whole)


def kinds_of(value: Any) -> list[str]:
    """Return the JSON types of a value, the narrowest first."""
    if isinstance(value, bool):
        return ["boolean"]
    if isinstance(value, int):
        return ["integer", "number"]
    kinds = {str: "string", float: "number", list: "array", dict: "object"}
    return [kinds.get(type(value), "null")]


def types_of(schema: dict[str, Any]) -> list[str]:
    given = schema.get("type")
    if isinstance(given, str | list):
        return [given] if isinstance(given, str) else [each for each in given if isinstance(each, str)]
    if "properties" in schema or "additionalProperties" in schema or "patternProperties" in schema:
        return ["object"]
    return ["array"] if "items" in schema or "prefixItems" in schema else []


def mapping_in(schema: dict[str, Any], key: str) -> dict[str, Any]:
    value = schema.get(key)
    return value if isinstance(value, dict) else {}


def list_in(schema: dict[str, Any], key: str) -> list[Any]:
    value = schema.get(key)
    return value if isinstance(value, list) else []
