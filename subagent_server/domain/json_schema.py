"""The drafts of JSON Schema, and schemas that are put inside others. Pure."""

from copy import deepcopy
from typing import Any
from urllib.parse import urljoin

NEWEST = "Draft202012Validator"
_VALIDATORS = {
    "json-schema.org/draft-04/schema": "Draft4Validator",
    "json-schema.org/draft-06/schema": "Draft6Validator",
    "json-schema.org/draft-07/schema": "Draft7Validator",
    "json-schema.org/draft/2019-09/schema": "Draft201909Validator",
    "json-schema.org/draft/2020-12/schema": NEWEST,
}
"""By the value of `$schema`, without its scheme: the class of `jsonschema` for that draft."""
_DATA = frozenset({"const", "enum", "default", "examples"})
_NAMED = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
_REFERENCES = frozenset({"$ref", "$dynamicRef"})


def validator_name(schema: Any) -> str | None:
    """Return the class of `jsonschema` that judges by the draft of `$schema`; None for an unknown draft.

    Without `$schema` a schema is one of 2020-12.
    """
    draft = schema.get("$schema") if isinstance(schema, dict) else None
    if draft is None:
        return NEWEST
    text = draft.removesuffix("#").rpartition("://")[2] if isinstance(draft, str) else ""
    return _VALIDATORS.get(text)


def embedded(schema: Any, place: str) -> Any:
    """Return a copy of `schema` that stands at `place` (`#/properties/output`) of another schema.

    Its references into itself point to where it stands now; its `$schema` and `$id`, which would give it a
    root of its own, are left out. A part with an `$id` is a root already and stays as it is; so does what is
    no schema: names of properties, and values such as those of `enum`.
    """
    root = schema.get("$id") if isinstance(schema, dict) else None
    if isinstance(schema, dict):
        schema = {key: value for key, value in schema.items() if key not in ("$schema", "$id")}
    return _moved(schema, place, root if isinstance(root, str) else "")


def _moved(schema: Any, place: str, root: str) -> Any:
    if isinstance(schema, list):
        return [_moved(item, place, root) for item in schema]
    if not isinstance(schema, dict) or isinstance(schema.get("$id"), str):
        return deepcopy(schema)
    return {key: _moved_value(key, value, place, root) for key, value in schema.items()}


def _moved_value(key: str, value: Any, place: str, root: str) -> Any:
    if key in _DATA:
        return deepcopy(value)
    if key in _REFERENCES and isinstance(value, str):
        return _reference(value, place, root)
    if key in _NAMED and isinstance(value, dict):
        return {name: _moved(part, place, root) for name, part in value.items()}
    return _moved(value, place, root)


def _reference(target: str, place: str, root: str) -> str:
    """Return where a reference of a schema with the `$id` `root` leads when that stands at `place`."""
    document, _, fragment = target.partition("#")
    if document and (not root or urljoin(root, document) != root.rstrip("#")):
        return target
    return place + fragment if not fragment or fragment.startswith("/") else f"#{fragment}"
