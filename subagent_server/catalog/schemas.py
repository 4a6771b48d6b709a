"""The schema of an agent's structured result: JSON Schema 2020-12, inline or in a file."""

import json
from collections.abc import Iterator
from pathlib import Path

from subagent_server.catalog.files import Unreadable, read_text
from subagent_server.catalog.problems import shown
from subagent_server.catalog.values import Json, Plain, Value, as_json
from subagent_server.domain.definitions import JsonSchema
from subagent_server.domain.errors import shorten

MAX_DEPTH = 60
_META_SCHEMAS = "https://json-schema.org/"
_NOT_SCHEMAS = frozenset({"const", "enum", "default", "examples"})


class BadSchema(Exception):
    """Why something cannot be an output schema; the message goes after the key's name."""


def inline_schema(value: Value) -> JsonSchema:
    """Return the schema that stands in the agent file itself, as YAML or as JSON text.

    Raises:
        BadSchema: it is not a JSON Schema 2020-12.
    """
    content = str(value) if isinstance(value, str) and not isinstance(value, Plain) else as_json(value)
    if isinstance(content, str) and content.lstrip().startswith("{"):
        content = _parsed(content, "")
    if isinstance(content, str):
        raise BadSchema("must be a JSON Schema: a schema in a file of its own is named by outputSchemaPath")
    return _checked(content, "")


def schema_file(path: Path) -> JsonSchema:
    """Return the schema in a JSON file.

    Raises:
        BadSchema: the file cannot be read, is not JSON, or is not a JSON Schema 2020-12.
    """
    where = f"{shown(path)}: "
    try:
        return _checked(_parsed(read_text(path), where), where)
    except Unreadable as error:
        raise BadSchema(where + error.reason) from error


def _parsed(text: str, where: str) -> Json:
    try:
        content: Json = json.loads(text, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        raise BadSchema(f"{where}it is not JSON (line {error.lineno}: {error.msg})") from error
    except (ValueError, RecursionError) as error:
        raise BadSchema(f"{where}it is not JSON that can be used ({error})") from error
    return content


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a JSON number")


def _checked(content: Json, where: str) -> JsonSchema:
    if not isinstance(content, dict | bool):
        raise BadSchema(f"{where}a schema is an object, true or false")
    _check_text(content, where)
    _check_schema(content, where)
    return dict(content) if isinstance(content, dict) else content


def _check_text(content: Json, where: str) -> None:
    try:
        json.dumps(content, ensure_ascii=False).encode("utf-8")
    except (UnicodeEncodeError, RecursionError) as error:
        raise BadSchema(f"{where}it holds text or nesting that cannot be written down") from error


def _check_schema(content: dict[str, Json] | bool, where: str) -> None:
    # Imported here: it takes a tenth of a second, and most agents have no schema.
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    try:
        references = list(_references(content))
        Draft202012Validator.check_schema(content)
    except SchemaError as error:
        at = "/".join(str(step) for step in error.absolute_path) or "its root"
        message = shorten(error.message, 160)
        raise BadSchema(f"{where}it is not a JSON Schema 2020-12 (at {at}: {message})") from error
    except RecursionError as error:
        raise BadSchema(f"{where}it is nested more than {MAX_DEPTH} deep") from error
    lost = _unresolved(content, references)
    if lost is not None:
        raise BadSchema(f"{where}the reference {shorten(lost)} leads nowhere: put what it means under $defs")


def _references(node: Json, depth: int = 0) -> Iterator[str]:
    """Return every `$ref` and `$dynamicRef` in a schema."""
    if depth > MAX_DEPTH:
        raise RecursionError
    if isinstance(node, dict):
        targets = (node.get(key) for key in ("$ref", "$dynamicRef"))
        yield from (target for target in targets if isinstance(target, str))
        for key, child in node.items():
            if key not in _NOT_SCHEMAS:
                yield from _references(child, depth + 1)
    elif isinstance(node, list):
        for child in node:
            yield from _references(child, depth + 1)


def _unresolved(content: dict[str, Json] | bool, references: list[str]) -> str | None:
    """Return the first reference that a validator could not follow; nothing is ever fetched for one."""
    if not references:
        return None
    from referencing.exceptions import CannotDetermineSpecification, Unresolvable
    from referencing.jsonschema import DRAFT202012, EMPTY_REGISTRY

    resolver = EMPTY_REGISTRY.resolver_with_root(DRAFT202012.create_resource(content))
    for target in references:
        if target.startswith(_META_SCHEMAS):
            continue
        try:
            resolver.lookup(target)
        except (Unresolvable, CannotDetermineSpecification):
            return target
    return None
