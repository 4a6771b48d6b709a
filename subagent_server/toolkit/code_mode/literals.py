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

    A call that cannot be judged, whatever the cause, is not in it: this check only advises, and schemas of
    servers hold what no validator expects.
    """
    validator, found = _validator(time.monotonic() + _SECONDS), list[tuple[int, str]]()
    for place, (name, given) in enumerate(calls[:MOST_CALLS_CHECKED]):
        try:
            fault = _misfit(validator, functions[name], given) if name in functions else None
        except _TooSlow:
            break
        except Exception:  # noqa: BLE001, S112 - a fault of an advice must not end the run of the program
            continue
        if fault is not None:
            found.append((place, f"{name}(): {fault}"))
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
    errors = validator({**known.schema, "required": []}).iter_errors(arguments)
    # An error without a path is of the arguments together, of which some may not be literals.
    error = best_match(error for error in errors if error.path)
    if error is None:
        return None
    # Below `anyOf`, `path` begins at the branch.
    argument, *within = error.absolute_path
    place = "".join(f"[{step!r}]" for step in within)
    return _cut(f"the argument {names[argument]!r}{place} is wrong: {_reason(error)}")


def _reason(error: ValidationError) -> str:
    if error.validator in ("anyOf", "oneOf"):
        wanted = json.dumps(error.validator_value, ensure_ascii=False)
        return f"{_cut(repr(error.instance))} fits none of {wanted}"
    return error.message


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
