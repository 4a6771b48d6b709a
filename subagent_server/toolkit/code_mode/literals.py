"""Literal arguments of a program's calls, held against the schemas of their tools before any of it runs.

Only a certain mistake is a fault. A server knows its own rules best, so some keywords do not count: patterns,
which each language reads in its own way, and all that negates or counts what others have accepted. Null does
not count either: many servers take it for an argument that is left out.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError, best_match
from jsonschema.validators import create

from subagent_server.toolkit.code_mode.catalogue import ToolFunction
from subagent_server.toolkit.mcp_servers.input_schema import input_schema

MOST_CALLS_CHECKED = 200
"""How many calls of a program are looked at; its first ones."""
_SECONDS = 0.5
_SHOWN = 500

_Keyword = Callable[..., Iterator[ValidationError] | None]
_USUAL: Mapping[str, _Keyword] = Draft202012Validator.VALIDATORS
_COUNTED = (
    *("$ref", "type", "enum", "const", "anyOf", "allOf", "properties", "required", "items", "prefixItems"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength"),
    *("minItems", "maxItems"),
)


class _TooSlow(Exception):
    """The time for the check is over."""


def misfits(
    functions: Mapping[str, ToolFunction], calls: Sequence[tuple[str, dict[str, Any]]]
) -> list[tuple[int, str]]:
    """Return the calls with a literal argument that is surely wrong: the place in `calls`, and the reason.

    From the schema on that takes too long, or goes too deep, nothing is judged.
    """
    validator, found = _validator(time.monotonic() + _SECONDS), list[tuple[int, str]]()
    try:
        for place, (name, given) in enumerate(calls[:MOST_CALLS_CHECKED]):
            function = functions.get(name)
            if function is not None and (fault := _misfit(validator, function, given)) is not None:
                found.append((place, f"{name}(): {fault}"))
    except (_TooSlow, RecursionError):
        pass
    return found


def _validator(deadline: float) -> Any:
    """Return a class of validators for the keywords that count, which stop at a time."""

    def bounded(keyword: _Keyword) -> Any:
        def check(validator: Any, given: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
            if time.monotonic() > deadline:
                raise _TooSlow
            if value is not None:
                yield from keyword(validator, given, value, schema) or ()

        return check

    counted = {name: _USUAL[name] for name in _COUNTED}
    keywords = {**counted, "oneOf": _USUAL["anyOf"], "additionalProperties": _others}
    return create(
        meta_schema=Draft202012Validator.META_SCHEMA,
        validators={name: bounded(keyword) for name, keyword in keywords.items()},
        type_checker=Draft202012Validator.TYPE_CHECKER,
    )


def _others(validator: Any, given: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    """Judge properties that have no name in the schema, unless they may have one that fits a pattern."""
    if "patternProperties" not in schema:
        yield from _USUAL["additionalProperties"](validator, given, value, schema) or ()


def _misfit(validator: Any, function: ToolFunction, given: Mapping[str, Any]) -> str | None:
    keys = {each.name: each.key for each in function.parameters if each.name in given}
    if not keys:
        return None
    known = input_schema(function.tool.input_schema)
    shown = {theirs: ours for ours, theirs in known.names.items()}
    names = {shown.get(key, key): name for name, key in keys.items()}
    arguments = {key: given[name] for key, name in names.items()}
    error = best_match(validator({**known.schema, "required": []}).iter_errors(arguments))
    if error is None:
        return None
    argument, *within = error.path
    place = "".join(f"[{step!r}]" for step in within)
    return _cut(f"the argument {names[argument]!r}{place} is wrong: {_reason(error)}")


def _reason(error: ValidationError) -> str:
    if error.validator in ("anyOf", "oneOf"):
        wanted = json.dumps(error.validator_value, ensure_ascii=False)
        return f"{_cut(repr(error.instance))} fits none of {wanted}"
    return error.message


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
