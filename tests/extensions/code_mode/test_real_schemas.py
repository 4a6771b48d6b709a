"""Tools of real servers as functions: code that compiles, types that resolve, and values that fit them."""

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from subagent_server.extensions.code_mode.stubs import Catalogue, ServerTool, ToolFunction, catalogue_of
from tests.extensions.code_mode.values import accepted, as_json, call, check_hints, complaints
from tests.toolbox.mcp.test_input_schemas import SHAPES

REAL_TOOLS = os.environ.get("REAL_TOOLS")
"""A file with definitions of real tools, one a line, if somebody names one: the shapes stand for them."""
SEED = 7
ALIKE = 19
"""The shape with a choice of objects of which one has the keys of another, and more. In a list, the
type checker leaves the larger out of such a union."""

TREE = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "children": {"items": {"$ref": "#/$defs/T"}}},
}
JSON = {
    "anyOf": [
        *({"type": kind} for kind in ("string", "number", "boolean", "null")),
        {"type": "array", "items": {"$ref": "#/$defs/J"}},
        {"type": "object", "properties": {"j": {"$ref": "#/$defs/J"}}, "additionalProperties": True},
    ]
}
KINDS = {
    "recursive choice": {"properties": {"json": {"$ref": "#/$defs/J"}}, "$defs": {"J": JSON}},
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


def sample() -> Catalogue:
    """Return one server with the shapes of real tools, and the rarer kinds, as arguments and as results."""
    shapes = [json.loads(line) for line in SHAPES.read_text(encoding="utf-8").splitlines()]
    shapes[ALIKE : ALIKE + 1] = KINDS.values()
    return catalogue_of(
        [ServerTool("shapes", f"tool{number}", "", shape, shape) for number, shape in enumerate(shapes)]
    )


def real() -> Iterator[Catalogue]:
    """Yield the tools of each real server."""
    servers: dict[str, list[ServerTool]] = {}
    with Path(str(REAL_TOOLS)).open(encoding="utf-8") as lines:
        for tool in map(json.loads, lines):
            facts = (tool["server"], tool["name"], tool["description"] or "", tool["inputSchema"])
            servers.setdefault(tool["server"], []).append(ServerTool(*facts, tool["outputSchema"]))
    for tools in servers.values():
        yield catalogue_of(tools)


def calls(catalogue: Catalogue, dice: random.Random) -> Iterator[tuple[ToolFunction, str]]:
    """Yield calls with values that the schemas of the tools accept."""
    for function in catalogue.functions:
        for value in accepted(_mended(function.tool.input_schema), dice):
            yield function, call(function, value)


def _mended(schema: Any) -> Any:
    """Return a schema that its server has put into `properties` by mistake."""
    inner = schema.get("properties", {})
    return inner if isinstance(inner.get("properties"), dict) and inner.get("type") == "object" else schema


def test_each_kind_of_schema_becomes_types_that_resolve_and_that_its_values_have(tmp_path: Path) -> None:
    catalogue, dice = sample(), random.Random(SEED)
    for function in catalogue.functions:
        check_hints(function)
    made = list(calls(catalogue, dice))
    assert len({function.name for function, _ in made}) == len(catalogue.functions)
    results = [
        f"shapes.take_{function.name}({value!r})"
        for function in catalogue.functions
        for value in accepted(function.tool.output_schema, dice)
    ]
    wrong = "shapes.tool1(p1='no list')"
    said = complaints([catalogue], [*(text for _, text in made), *results, wrong], tmp_path)
    assert len(said) == 1 and 'incompatible type "str"; expected "list[str]"' in said[0], "\n".join(said)


@pytest.mark.fuzz
@pytest.mark.skipif(REAL_TOOLS is None, reason="REAL_TOOLS names no file of definitions")
@pytest.mark.timeout(600)
def test_each_real_tool_becomes_types_that_resolve_and_that_its_values_have(tmp_path: Path) -> None:
    dice, catalogues, made = random.Random(SEED), list(real()), []
    for catalogue in catalogues:
        for function in catalogue.functions:
            check_hints(function)
        made += list(calls(catalogue, dice))
    tools = sum(len(catalogue.functions) for catalogue in catalogues)
    assert len({function.qualified for function, _ in made}) > 0.99 * tools, "few schemas have no value here"
    assert complaints(catalogues, [text for _, text in made], tmp_path) == []


@pytest.mark.skipif(REAL_TOOLS is None, reason="REAL_TOOLS names no file of definitions")
def test_stubs_are_smaller_than_the_definitions_of_nearly_all_real_tools() -> None:
    sizes = [
        (len(function.stub.text), len(as_json(definition(function.tool))))
        for catalogue in real()
        for function in catalogue.functions
    ]
    smaller = sum(stub < whole for stub, whole in sizes)
    assert smaller >= 0.98 * len(sizes) and sum(stub for stub, _ in sizes) < 0.65 * sum(
        whole for _, whole in sizes
    )


def definition(tool: ServerTool) -> dict[str, Any]:
    """Return a tool as the model would read it without code mode."""
    return {"name": tool.name, "description": tool.description, "input_schema": tool.input_schema}
