"""Tool schemas that servers have written, as definitions that the Messages API takes."""

import json
import os
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from subagent_server.toolbox.mcp.input_schemas import DEAD_REFERENCE, InputSchema, free_name, input_schema
from subagent_server.toolbox.mcp.mcp_tools import MOST_CHARACTERS, acceptable
from tests.helpers.api_checks import check_request
from tests.helpers.scale import times

SHAPES = Path(__file__).with_name("schema_shapes.jsonl")
"""Schemas of the wild with other names and no words. They have every keyword that 4,080 have, wherever
one has it."""
REAL_TOOLS = os.environ.get("REAL_TOOLS")
"""A file with definitions of real tools, one a line, if somebody names one: the shapes stand for them."""
PARTS = 2
NAN, INF = float("nan"), float("inf")


def take(schema: InputSchema, name: str = "tool") -> None:
    """Raise if the API would refuse a tool with this schema."""
    tool = {"name": name, "description": "d", "input_schema": schema.schema}
    messages = [{"role": "user", "content": "Go."}]
    json.dumps(tool, allow_nan=False)
    check_request({"model": "m", "max_tokens": 1, "messages": messages, "tools": [tool]})


def test_every_shape_of_a_real_schema_becomes_a_definition_that_the_api_takes() -> None:
    shapes = [json.loads(line) for line in SHAPES.read_text(encoding="utf-8").splitlines()]
    changed = 0
    for number, shape in enumerate(shapes):
        schema = input_schema(shape)
        take(schema, f"tool_{number}")
        changed += schema.schema != {key: value for key, value in shape.items() if key != "$schema"}
    assert len(shapes) > 30 and 0 < changed < 10, "what is good stays as it is"


@pytest.mark.skipif(
    REAL_TOOLS is None, reason="REAL_TOOLS names no file of definitions; their shapes are tested"
)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_real_tool_becomes_a_definition_that_the_api_takes(part: int) -> None:
    names: set[str] = set()
    changed = 0
    with Path(str(REAL_TOOLS)).open(encoding="utf-8") as lines:
        for line in islice(lines, part, None, PARTS):
            tool = json.loads(line)
            name = free_name(acceptable(tool["name"]), names, MOST_CHARACTERS - 4)
            names.add(name)
            schema = input_schema(tool["inputSchema"])
            take(schema, name)
            plain = {key: value for key, value in tool["inputSchema"].items() if key != "$schema"}
            changed += schema.schema != plain
    assert len(names) > 2_000 and changed < 20, "what is good stays as it is"


OBJECT = {"type": "object"}


@pytest.mark.parametrize(
    ("given_schema", "wanted"),
    [
        pytest.param({}, {**OBJECT}, id="nothing"),
        pytest.param(None, {**OBJECT}, id="null"),
        pytest.param(
            {"$schema": "http://json-schema.org/draft-07/schema#", **OBJECT}, {**OBJECT}, id="dialect"
        ),
        pytest.param({"type": ["object", "null"]}, {**OBJECT}, id="a list of types"),
        pytest.param(
            {"properties": {"a": {"type": "any"}, "b": {"type": "String"}, "c": "string", "d": 5}},
            {**OBJECT, "properties": {"a": {}, "b": {"type": "string"}, "c": {"type": "string"}, "d": {}}},
            id="types that are none",
        ),
        pytest.param(
            {
                "properties": {
                    "a": {"required": True, "minimum": 3, "exclusiveMinimum": True, "maxLength": "9"}
                    | {"maximum": 10**400}
                }
            },
            {**OBJECT, "properties": {"a": {"exclusiveMinimum": 3}}},
            id="words of draft 3 and 4, and what is no number",
        ),
        pytest.param(
            {"properties": {"a": {"items": [{"type": "string"}], "additionalItems": False}}},
            {**OBJECT, "properties": {"a": {"prefixItems": [{"type": "string"}], "items": False}}},
            id="a tuple of draft 7",
        ),
        pytest.param(
            {"properties": {"type": "object", "properties": {"a": {}}, "required": ["a"]}},
            {**OBJECT, "properties": {"a": {}}, "required": ["a"]},
            id="a schema among the properties",
        ),
        pytest.param(
            {"properties": {"a": {}}, "required": ["a", "b"]},
            {**OBJECT, "properties": {"a": {}, "b": {}}, "required": ["a", "b"]},
            id="what is required and has no schema",
        ),
        pytest.param(
            {"$ref": "#/$defs/In", "$defs": {"In": {"properties": {"a": {"$ref": "#/$defs/T"}}}, "T": {}}},
            {
                "properties": {"a": {"$ref": "#/$defs/T"}},
                "required": [],
                "$defs": {"In": {"properties": {"a": {"$ref": "#/$defs/T"}}}, "T": {}},
                **OBJECT,
            },
            id="a reference at the root",
        ),
        pytest.param(
            {
                "properties": {
                    "a": {"$ref": "http://elsewhere/x"},
                    "b": {"$ref": "#/nowhere", "title": "B"},
                    "c": {"$ref": f"#/required/{'9' * 5000}"},
                },
                "required": ["a"],
            },
            {
                **OBJECT,
                "properties": {
                    "a": {"$comment": DEAD_REFERENCE},
                    "b": {"title": "B", "$comment": DEAD_REFERENCE},
                    "c": {"$comment": DEAD_REFERENCE},
                },
                "required": ["a"],
            },
            id="references that lead nowhere",
        ),
        pytest.param(
            {
                "allOf": [
                    {"properties": {"a": {}}, "required": ["a"]},
                    {"properties": {"b": {}, "a": {"type": "null"}}},
                ]
            },
            {**OBJECT, "properties": {"a": {"allOf": [{}, {"type": "null"}]}, "b": {}}, "required": ["a"]},
            id="all of several",
        ),
        pytest.param(
            {
                "properties": {"a": {"pattern": "^\\p{L}+$", "title": "A"}, "b": {"pattern": "^x"}},
                "patternProperties": {"^(?<year>)": {}, "^y": {}},
                "additionalProperties": False,
            },
            {
                **OBJECT,
                "properties": {"a": {"title": "A"}, "b": {"pattern": "^x"}},
                "patternProperties": {"^y": {}},
            },
            id="patterns that only JavaScript reads",
        ),
        pytest.param(
            {"properties": {"a": {"default": NAN, "enum": [1, NAN], "x-range": [0, -INF], "const": 1}}},
            {**OBJECT, "properties": {"a": {"const": 1}}},
            id="numbers that JSON cannot hold",
        ),
    ],
)
def test_a_schema_is_brought_into_form(given_schema: Any, wanted: dict[str, Any]) -> None:
    schema = input_schema(given_schema)
    assert schema.schema == wanted
    take(schema)


def test_a_choice_at_the_root_allows_each_branch_and_the_description_holds_the_rest() -> None:
    by_id = {"properties": {"kind": {"const": "id"}, "id": {"type": "integer"}}, "required": ["kind", "id"]}
    by_name = {"properties": {"kind": {"const": "name"}, "name": {}}, "required": ["name", "kind"]}
    schema = input_schema(
        {"type": "object", "properties": {"deep": {}}, "required": ["deep"], "oneOf": [by_id, by_name]}
    )
    assert schema.schema["properties"] == {
        "deep": {},
        "kind": {"anyOf": [{"const": "id"}, {"const": "name"}]},
        "id": {"type": "integer"},
        "name": {},
    }
    assert schema.schema["required"] == ["deep", "kind"]
    assert json.loads(schema.rule) == {"oneOf": [by_id, by_name]}
    take(schema)


@pytest.mark.parametrize("choice", ["allOf", "anyOf"])
@pytest.mark.timeout(60)
def test_references_at_the_root_that_multiply_take_no_time(choice: str) -> None:
    levels: dict[str, Any] = {
        f"n{level}": {choice: [{"$ref": f"#/$defs/n{level + 1}"}] * 10} for level in range(15)
    }
    take(input_schema({"$defs": levels, "$ref": "#/$defs/n0"}))


def test_a_property_that_hundreds_of_parts_bound_has_all_their_bounds() -> None:
    bounds = [{"minimum": number} for number in range(500)]
    schema = input_schema({"allOf": [{"properties": {"a": bound}} for bound in bounds]})
    assert schema.schema["properties"] == {"a": {"allOf": bounds}}
    take(schema)


def test_names_of_properties_that_the_api_refuses_are_changed_and_changed_back() -> None:
    names = ["$filter", "_filter", "user name", "ünï", "x" * 70, "fine.name-1"]
    given_schema = {"properties": {name: {} for name in names}, "required": names}
    schema = input_schema(given_schema)
    take(schema)
    shown = list(schema.schema["properties"])
    assert shown[:3] == ["_filter_2", "_filter", "user_name"] and shown[-1] == "fine.name-1"
    assert schema.schema["required"] == shown
    assert list(schema.for_server(dict.fromkeys(shown))) == names
    assert schema.for_server({"else": 1}) == {"else": 1}


KEYWORDS = [
    *("type", "properties", "items", "required", "anyOf", "oneOf", "allOf", "not", "enum", "const", "$ref"),
    *(
        *("$defs", "definitions", "additionalProperties", "prefixItems", "minimum", "exclusiveMinimum"),
        "pattern",
    ),
    *("format", "minItems", "uniqueItems", "dependencies", "dependentRequired", "$id", "$anchor", "default"),
    *("description", "examples", "$schema", "patternProperties", "if", "then", "$dynamicRef", "multipleOf"),
]
SCALARS = st.sampled_from(
    [
        *("object", "string", "any", "#", "#/properties/a", "#/$defs/a", "a", "$x"),
        True,
        False,
        None,
        0,
        -1,
        NAN,
        2.5,
        3,
    ]
)
SCHEMAS = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*KEYWORDS, "a", "b c"]), inner, max_size=4)
    ),
    max_leaves=25,
)


@settings(max_examples=times(50, 150), deadline=None, database=None)
@given(SCHEMAS)
def test_whatever_a_server_calls_a_schema_becomes_one_that_the_api_takes(anything: Any) -> None:
    take(input_schema(anything))
    take(input_schema({"type": "object", "properties": anything}))
