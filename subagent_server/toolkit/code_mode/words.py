"""Words of servers as comments and docstrings of Python code, which they cannot break out of. Pure."""

import json
import re
from collections.abc import Iterable, Mapping
from textwrap import indent
from typing import Any

from subagent_server.domain.visible import visible

MAX_COMMENT_CHARACTERS = 2_000
MAX_DOCSTRING_CHARACTERS = 10_000
_MAX_DEFAULT_CHARACTERS = 200
_FACTS = (
    *("format", "pattern", "minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum"),
    *("exclusiveMaximum", "multipleOf", "minItems", "maxItems"),
)
"""Keywords that no type expresses and that a caller should know."""


def comment(words: Iterable[str]) -> str:
    """Return the words as a comment at the end of a line, or nothing if there are none."""
    text = "; ".join(
        filter(None, (" ".join(shortened(each, MAX_COMMENT_CHARACTERS).split()) for each in words))
    )
    if re.match(r"type\s*:", text):  # type checkers would read it as code
        text = f"({text})"
    return f"  # {visible(text)}" if text else ""


def body(text: str) -> str:
    """Return the body of a function: a docstring that says `text`."""
    lines = [line.rstrip() for line in shortened(text, MAX_DOCSTRING_CHARACTERS).strip().splitlines()]
    if not any(lines):
        return "    ...\n"
    plain = indent("\n".join(lines), "    ").lstrip().replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    if plain.endswith('"'):
        plain = f'{plain[:-1]}\\"'
    return f'    """{visible(plain, chr(10))}"""\n'


def facts(schema: Mapping[str, Any]) -> list[str]:
    """Return the description of a value and the bounds that its type does not express."""
    described = [str(schema.get("description") or "")]
    described += [f"{key} {_json(schema[key])}" for key in _FACTS if key in schema]
    items = schema.get("items")
    if isinstance(items, dict) and (inner := "; ".join(filter(None, facts(items)))):
        described.append(f"each: {inner}")
    choice = schema.get("anyOf")
    branches = [each for each in choice if isinstance(each, dict)] if isinstance(choice, list) else []
    if len(bounded := [each for each in branches if each.get("type") != "null"]) == 1:
        described += facts(bounded[0])
    return described


def default(schema: Mapping[str, Any]) -> list[str]:
    """Return the default of a value in words, if it has one."""
    return [f"default {_json(schema['default'])}"] if schema.get("default") is not None else []


def _json(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr)
    return shortened(text, _MAX_DEFAULT_CHARACTERS)


def shortened(text: str, most: int) -> str:
    """Return the text in at most `most` characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
