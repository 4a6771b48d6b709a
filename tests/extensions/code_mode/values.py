"""Values that a JSON Schema accepts, and stubs with calls that give such values, for a type checker."""

import ast
import json
import random
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError
from mypy import api

from subagent_server.extensions.code_mode.stubs import Catalogue, ToolFunction
from subagent_server.toolbox.mcp.input_schemas import repaired, resolved

PREAMBLE = "from typing import Any, Literal, NotRequired, TypedDict\nclass Text(str): ...\n"
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


def call(function: ToolFunction, arguments: dict[str, Any]) -> str:
    """Return a call of a function with these arguments, as a program writes it."""
    names = {parameter.key: parameter.name for parameter in function.stub.parameters}
    named = [f"{names.pop(key)}={value!r}" for key, value in arguments.items() if key in names]
    others = {
        key: value for key, value in arguments.items() if key not in {p.key for p in function.stub.parameters}
    }
    more = [f"**{others!r}"] if others else []
    return f"{function.qualified}({', '.join([*named, *more])})"


def check_hints(function: ToolFunction) -> None:
    """Raise if a stub does not compile, or if a type in it leads nowhere."""
    module = ModuleType("stub")
    exec(compile(PREAMBLE + function.stub.text, function.qualified, "exec"), module.__dict__)
    hints = typing.get_type_hints(getattr(module, function.name), include_extras=True)
    assert hints.keys() - {"return"} >= {parameter.name for parameter in function.stub.parameters} - {
        "return"
    }
    for each in vars(module).values():
        if typing.is_typeddict(each):
            typing.get_type_hints(each, vars(module))


def complaints(catalogues: Sequence[Catalogue], calls: Sequence[str], place: Path) -> list[str]:
    """Return what a type checker says of these calls, with the line that it means."""
    namespaces: dict[str, list[str]] = {}
    for catalogue in catalogues:
        for function in catalogue.functions:
            texts = namespaces.setdefault(function.namespace, [PREAMBLE])
            texts += [function.stub.text, _taker(function)]
    for namespace, texts in namespaces.items():
        (place / f"{namespace}.pyi").write_text("\n".join(texts), encoding="utf-8")
    lines = [*(f"import {namespace}" for namespace in namespaces), *calls]
    (place / "program.py").write_text("\n".join(lines) + "\n", encoding="utf-8")
    options = [
        "--strict",
        "--no-error-summary",
        "--hide-error-context",
        "--no-color-output",
        "--cache-dir=/dev/null",
    ]
    said, trouble, _ = api.run([*options, str(place / "program.py"), *map(str, place.glob("*.pyi"))])
    return [*trouble.splitlines(), *said.splitlines()]


def _taker(function: ToolFunction) -> str:
    """Return the stub of a function `take_<name>` that takes what this one returns."""
    defined = ast.parse(function.stub.text).body[-1]
    assert isinstance(defined, ast.FunctionDef) and defined.returns is not None
    return f"def take_{function.name}(value: {ast.unparse(defined.returns)}) -> None: ..."


def as_json(value: Any) -> str:
    """Return a definition in the form in which the model would otherwise read it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
