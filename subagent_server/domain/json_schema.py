"""JSON Schemas that are put inside others."""

from typing import Any


def embedded(schema: Any, place: str) -> Any:
    """Return a copy of `schema` that stands at `place` (`#/properties/output`) of another schema.

    Its references into itself point to where it stands now; `$schema` and `$id`, which would give it a
    root of its own, are left out.
    """
    if isinstance(schema, list):
        return [embedded(item, place) for item in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {key: embedded(value, place) for key, value in schema.items() if key not in ("$schema", "$id")}
    reference = moved.get("$ref")
    if reference == "#" or (isinstance(reference, str) and reference.startswith("#/")):
        moved["$ref"] = place + reference[1:]
    return moved
