"""Whether a schema keeps the strict rules of OpenAI's structured outputs."""

from typing import Any

_MOST_LEVELS = 32
_KEYWORDS = frozenset(
    {
        "type",
        "properties",
        "required",
        "additionalProperties",
        "items",
        "enum",
        "const",
        "description",
        "title",
    }
)


def is_strict(schema: Any, level: int = 0) -> bool:
    """Whether the API takes a schema as it is: objects are closed, and every property is required.

    A schema with other keywords is not passed on: the API would refuse the request, and the run with it.
    """
    if not isinstance(schema, dict) or level > _MOST_LEVELS or not schema.keys() <= _KEYWORDS:
        return False
    if schema.get("type") == "object" or level == 0:
        properties = schema.get("properties")
        if schema.get("type") != "object" or not isinstance(properties, dict):
            return False
        if schema.get("additionalProperties") is not False or set(schema.get("required", ())) != set(
            properties
        ):
            return False
        return all(is_strict(part, level + 1) for part in properties.values())
    return schema.get("type") != "array" or is_strict(schema.get("items"), level + 1)
