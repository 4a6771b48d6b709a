"""Values that a JSON Schema accepts, and whether the types of a stub take them."""

import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any
from unittest.mock import patch

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError
from pydantic import ConfigDict, TypeAdapter
from typing_extensions import get_type_hints, is_typeddict

from subagent_server.extensions.code_mode.stubs import ToolFunction
from subagent_server.toolbox.mcp.input_schemas import repaired, resolved

PREAMBLE = "from typing_extensions import Any, Literal, NotRequired, TypedDict\nclass Text(str): ...\n"
"""The names that stubs use."""
_DEEPEST = 6
_TRIES = 6
_TEXTS = (
    "a",
    "2026-01-31",
    "2026-01-31T10:00:00Z",
    "a@b.example",
    "https://a.example/x",
    "12345678",
    "#aabbcc",
)


def accepted(schema: Any, dice: random.Random) -> Iterator[Any]:
    """Yield a few objects that the schema accepts, the first with as little as it can have."""
    whole = repaired(schema)
    for number in range(_TRIES):
        value = _value(whole, whole, dice, 0, number / (_TRIES - 1))
        try:
            Draft202012Validator(whole).validate(value)
        except (ValidationError, SchemaError):
            continue
        yield value


def _value(schema: Any, root: Any, dice: random.Random, depth: int, share: float) -> Any:
    """Return a value that the schema seems to want, with this share of what is optional."""
    if not isinstance(schema, dict) or not schema:
        return dice.choice(["any", 1, None, [], {}])
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return dice.choice(schema["enum"])
    if isinstance(reference := schema.get("$ref"), str):
        return _value(resolved(reference, root), root, dice, depth, share)
    if schema.get("allOf"):
        found = [
            _value(part, root, dice, depth, share) for part in [_without(schema, "allOf"), *schema["allOf"]]
        ]
        return _all(found)
    for key in ("anyOf", "oneOf"):
        if schema.get(key):
            beside = _without(schema, key)
            branch = _value(dice.choice(schema[key]), root, dice, depth, share)
            return (
                _all([_value(beside, root, dice, depth, share), branch]) if "properties" in beside else branch
            )
    return _plain(schema, root, dice, depth, share)


def _without(schema: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in schema.items() if name != key}


def _all(values: Sequence[Any]) -> Any:
    objects = [value for value in values if isinstance(value, dict)]
    return {key: value for each in objects for key, value in each.items()} if objects else values[-1]


def _plain(schema: dict[str, Any], root: Any, dice: random.Random, depth: int, share: float) -> Any:
    kinds = schema.get("type") or (
        "object" if "properties" in schema else "array" if "items" in schema else "string"
    )
    kind = dice.choice(kinds) if isinstance(kinds, list) else kinds
    if kind == "object":
        required = schema.get("required", [])
        return {
            key: _value(part, root, dice, depth + 1, share)
            for key, part in schema.get("properties", {}).items()
            if key in required or (depth < _DEEPEST and dice.random() < share)
        }
    if kind == "array":
        places = [_value(part, root, dice, depth + 1, share) for part in schema.get("prefixItems", [])]
        least = max(schema.get("minItems", 0), 0 if depth >= _DEEPEST else dice.choice([0, 1, 2])) - len(
            places
        )
        return places + [_value(schema.get("items", {}), root, dice, depth + 1, share) for _ in range(least)]
    if kind in ("integer", "number"):
        least = schema.get("minimum", schema.get("exclusiveMinimum", -1) + 1)
        return int(least) if kind == "integer" else dice.choice([least, float(least)])
    if kind == "string":
        text = dice.choice(_TEXTS)
        return text.ljust(schema.get("minLength", 0), "x")[: schema.get("maxLength")]
    return dice.choice([True, False]) if kind == "boolean" else None


def check_hints(function: ToolFunction, arguments: Iterable[Any] = (), results: Iterable[Any] = ()) -> None:
    """Raise if a stub does not compile, if a type in it leads nowhere, or does not take one of the values."""
    module = ModuleType(function.qualified)
    with patch.dict(sys.modules, {function.qualified: module}):  # where types look for names that come later
        exec(compile(PREAMBLE + function.stub.text, function.qualified, "exec"), module.__dict__)
        for each in vars(module).values():
            if is_typeddict(each):
                each.__pydantic_config__ = ConfigDict(extra="forbid", strict=True)
                get_type_hints(each, vars(module))
        defined = getattr(module, function.name)
        hints, names = get_type_hints(defined, include_extras=True), {"": "return"}
        for parameter in function.stub.parameters:
            names[parameter.key] = parameter.name
        others = next((name for name in hints if name not in names.values()), None)
        for values in [*arguments, *({"": result} for result in results)]:
            for key, value in values.items():
                hint = hints[names.get(key, others or key)]
                adapter = TypeAdapter[Any](hint)
                adapter.rebuild(force=True, raise_errors=False, _types_namespace=vars(module))
                adapter.validate_python(value, strict=True)
