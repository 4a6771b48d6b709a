"""Shapes of real tools as functions: code that compiles, types that resolve, and values that fit them."""

import json
import random
from typing import Any

import pytest

from subagent_server.extensions.code_mode.stubs import ServerTool, catalogue_of
from tests.extensions.code_mode.values import accepted, check_hints
from tests.toolbox.mcp.test_input_schemas import SHAPES as REAL

SEED = 7
TREE = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "children": {"items": {"$ref": "#/$defs/T"}}},
}
KINDS = {
    "recursion": {"properties": {"tree": {"$ref": "#/$defs/T"}}, "required": ["tree"], "$defs": {"T": TREE}},
    "keyword keys": {"properties": {"from": {"type": "object", "properties": {"in": {"type": "integer"}}}}},
    "allOf": {"properties": {"x": {"allOf": [{"properties": {"a": {}}}, TREE | {"properties": {"b": {}}}]}}},
    "open object": {
        "properties": {"x": {"properties": {"a": {}}, "additionalProperties": {"type": "integer"}}}
    },
    "nullable": {"properties": {"x": {"type": "integer", "nullable": True}, "y": {"const": "only"}}},
    "numbers": {"properties": {"x": {"enum": [1.5, 2.5]}, "y": {"enum": [1, "1", None]}}},
    "discriminated": {
        "properties": {
            "x": {
                "oneOf": [
                    {
                        "properties": {"kind": {"const": "a"}, "a": {"type": "string"}},
                        "required": ["kind", "a"],
                    },
                    {
                        "properties": {"kind": {"const": "b"}, "b": {"type": "integer"}},
                        "required": ["kind", "b"],
                    },
                ]
            }
        }
    },
}
"""What few real tools have, each for the feature that it is named after."""


SHAPES = [*map(json.loads, REAL.read_text(encoding="utf-8").splitlines()), *KINDS.values()]


def _mended(schema: Any) -> Any:
    """Return a schema that its server has put into `properties` by mistake."""
    inner = schema.get("properties", {})
    return inner if isinstance(inner.get("properties"), dict) and inner.get("type") == "object" else schema


@pytest.mark.parametrize("shape", SHAPES)
def test_each_kind_of_schema_becomes_types_that_resolve_and_take_all_its_values(shape: Any) -> None:
    (function,) = catalogue_of([ServerTool("shapes", "tool", "", shape, shape)]).functions
    dice = random.Random(SEED)
    arguments = list(accepted(_mended(shape), dice))
    assert arguments
    check_hints(function, arguments, accepted(shape, dice))


def test_a_value_of_another_type_is_not_taken() -> None:
    schema = {"properties": {"a": {"items": {"type": "string"}}}}
    (function,) = catalogue_of([ServerTool("shapes", "tool", "", schema)]).functions
    with pytest.raises(ValueError, match="valid list"):
        check_hints(function, [{"a": "no list"}])
