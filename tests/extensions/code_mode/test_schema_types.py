"""Schemas of servers as types of Python. Pure."""

import re
from typing import Any

import pytest

from subagent_server.extensions.code_mode.stubs import ServerTool, catalogue_of


def stub_of(properties: dict[str, Any], **more: Any) -> str:
    """Return the stub of a tool `take` whose arguments have these schemas, all required."""
    schema = {"type": "object", "properties": properties, "required": list(properties), **more}
    (function,) = catalogue_of([ServerTool("box", "take", "", schema)]).functions
    return function.stub.text


NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}}
STRING, NUMBER = {"type": "string"}, {"type": "number"}
A_OBJECT = {"type": "object", "properties": {"a": STRING}, "required": ["a"]}
B_OBJECT = {"type": "object", "properties": {"b": NUMBER}}

ANNOTATIONS = [
    ({"type": "integer"}, "int"),
    ({"type": ["string", "null"]}, "str | None"),
    ({"type": "string", "nullable": True}, "str | None"),
    ({"enum": ["a", 2, True, None]}, "Literal['a', 2, True] | None"),
    ({"const": "x"}, "Literal['x']"),
    ({"oneOf": [{"const": "a"}, {"const": "b"}]}, "Literal['a', 'b']"),
    ({"type": "string", "enum": ["a", 1]}, "Literal['a']"),
    ({"enum": [0.5, 2]}, "float | int  # one of 0.5, 2"),
    (
        {"enum": [str(n) for n in range(300)]},
        "str  # one of '0', '1', '2', '3', '4' and 295 more",
    ),
    ({"anyOf": [STRING, STRING, {"type": "null"}]}, "str | None"),
    ({"anyOf": [STRING, {}]}, "Any"),
    ({"items": STRING}, "list[str]"),
    ({"type": "array"}, "list[Any]"),
    ({"type": "object"}, "dict[str, Any]"),
    ({"additionalProperties": NUMBER}, "dict[str, float]"),
    ({"patternProperties": {"^x": NUMBER}}, "dict[str, float]"),
    (
        {"type": "array", "prefixItems": [STRING, NUMBER], "minItems": 2, "maxItems": 2},
        "tuple[str, float] | list[str | float]  # minItems 2; maxItems 2",
    ),
    (
        {"items": [STRING, NUMBER], "additionalItems": {"type": "boolean"}},
        "list[str | float | bool]",
    ),
    (A_OBJECT, "TakeValue"),
    ({**A_OBJECT, "additionalProperties": True}, "TakeValue | dict[str, Any]"),
    ({"anyOf": [A_OBJECT, B_OBJECT]}, "TakeValue | TakeValue2"),
    ({"allOf": [{"$ref": "#/$defs/Node"}], "description": "d"}, "Node  # d"),
    ({"$ref": "#/$defs/Name"}, "str"),
    ({"$ref": "#/$defs/Loop"}, "Loop"),
    ({"allOf": [NUMBER, {"type": "integer"}]}, "int"),
    ({"allOf": [STRING, NUMBER]}, "Any  # no value is of all the types"),
    (False, "Any  # no value is valid here"),
    ({"enum": []}, "Any  # no value is valid here"),
    (True, "Any"),
    ({"not": STRING}, "Any  # a rule that no type expresses"),
    ({"$ref": "#/nowhere"}, "Any  # a reference that leads nowhere"),
    ({"$ref": "#/$defs/A%3CB%3E"}, "bool"),
]


@pytest.mark.parametrize(("schema", "annotation"), ANNOTATIONS, ids=str)
def test_a_schema_becomes_a_type_that_takes_all_its_values(schema: Any, annotation: str) -> None:
    defined = {
        "Node": NODE,
        "Name": STRING,
        "A<B>": {"type": "boolean"},
        "Loop": {"items": {"$ref": "#/$defs/Loop"}},
    }
    stub = stub_of({"value": schema}, **{"$defs": defined})
    (found,) = re.findall(r"value: (.*?)(?:,(  # .*)?\n|\) -> Text)", stub)
    assert "".join(found) == annotation


@pytest.mark.parametrize("name", ["Exception", "Text", "Literal", "ToolError"])
def test_a_type_hides_no_other_name_of_a_program(name: str) -> None:
    defined = {name: A_OBJECT}
    stub = stub_of({"value": {"$ref": f"#/$defs/{name}"}}, **{"$defs": defined})
    assert f"class {name}_(TypedDict):" in stub


TREE = {"type": "object", "properties": {"branches": {"items": {"$ref": "#/$defs/Tree"}}, "from": {}}}
ONE, OTHER = {"properties": {"x": A_OBJECT, "y": {"type": "array", "items": A_OBJECT}}}, {"oneX": B_OBJECT}
SHAPES: list[tuple[dict[str, Any], list[str]]] = [
    (  # the parts of an allOf are one type
        {"value": {"allOf": [A_OBJECT, B_OBJECT, {"required": ["b"]}], "properties": {"c": {}}}},
        ["class TakeValue(TypedDict):\n    c: NotRequired[Any]\n    a: str\n    b: float\n"],
    ),
    (  # a choice that only bounds an object leaves its type
        {"value": {"properties": {"a": {}, "b": {}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}},
        ["value: TakeValue)"],
    ),
    (  # what stands beside a choice holds in each branch
        {"value": {"type": "object", "properties": {"x": STRING}, "oneOf": [A_OBJECT, B_OBJECT]}},
        [
            "class TakeValue(TypedDict):\n    x: NotRequired[str]\n    a: str\n",
            "class TakeValue2(TypedDict):\n    x: NotRequired[str]\n    b: NotRequired[float]\n",
        ],
    ),
    (  # a type that contains itself does so by its name
        {"value": {"$ref": "#/$defs/Tree"}},
        ["'branches': NotRequired[list['Tree']]", "value: Tree)"],
    ),
    (  # equal objects are one type, and others of its name get a number
        {"one": ONE, "One_x": A_OBJECT, **OTHER},
        ["y: NotRequired[list[TakeOneX]]", "One_x: TakeOneX", "oneX: TakeOneX2"],
    ),
]


@pytest.mark.parametrize(("properties", "parts"), SHAPES)
def test_an_object_becomes_one_typed_dict_with_all_that_holds_of_it(
    properties: dict[str, Any], parts: list[str]
) -> None:
    stub = stub_of(properties, **{"$defs": {"Tree": TREE}})
    for part in parts:
        assert stub.count(part) == 1, stub
    assert stub.count("    a: str\n") <= 1


def refers(name: str) -> dict[str, str]:
    return {"$ref": f"#/$defs/{name}"}


RECURSIVE = [
    (
        {"anyOf": [STRING, {"items": refers("T")}, {"additionalProperties": refers("T")}, {"type": "null"}]},
        "T: TypeAlias = str | list['T'] | dict[str, 'T'] | None\n",
    ),
    ({"items": {"items": refers("T")}}, "T: TypeAlias = list[list['T']]\n"),
    (
        {"properties": {"t": refers("T")}, "type": ["object", "null"]},
        "class T(TypedDict):\n    t: NotRequired['T2']\nT2: TypeAlias = T | None\n",
    ),
    (
        {"properties": {"t": refers("T")}, "required": ["t"], "additionalProperties": True},
        "class T(TypedDict):\n    t: 'T2'\nT2: TypeAlias = T | dict[str, Any]\n",
    ),
    (
        {"anyOf": [refers("Other"), NUMBER]},
        "T: TypeAlias = list['Other'] | float\nOther: TypeAlias = T | list['Other']\n",
    ),
    (
        {"properties": {"t": refers("Other")}},
        "class T(TypedDict):\n    t: NotRequired[\"T | list['Other']\"]\n"
        "Other: TypeAlias = T | list['Other']\n",
    ),
    (  # keys of a filter as many tools have it
        {"oneOf": [{"properties": {"not": refers("T")}}, A_OBJECT]},
        "T = TypedDict(\"T\", {\n    'not': NotRequired['T2'],\n})\nclass T3(TypedDict):\n    a: str\n"
        "T2: TypeAlias = T | T3\n",
    ),
    (refers("T"), "T: TypeAlias = Any  # a type that is nothing but itself\n"),
]


@pytest.mark.parametrize(("schema", "definitions"), RECURSIVE, ids=str)
def test_each_type_that_contains_itself_has_a_name(schema: Any, definitions: str) -> None:
    other = {"anyOf": [refers("T"), {"items": refers("Other")}]}
    stub = stub_of({"value": refers("T")}, **{"$defs": {"T": schema, "Other": other}})
    assert stub.startswith(f"{definitions}def take(*, value: T")


@pytest.mark.parametrize("key", ["from", "a-b", "", "__x", "str", "Any", "TakeValue", "ﬁ", "\ud800", 'q"\n'])
def test_a_key_that_is_no_name_stands_in_a_mapping(key: str) -> None:
    stub = stub_of({"value": {"type": "object", "properties": {key: STRING}}})
    assert f'TakeValue = TypedDict("TakeValue", {{\n    {key!r}: NotRequired[str],\n}})' in stub


def test_deep_and_large_schemas_end_in_any() -> None:
    deep: Any = {}
    for _ in range(40):
        deep = {"type": "array", "items": deep}
    assert "# the schema is too deep" in stub_of({"value": deep})
    large = {"enum": [f"{number}" for number in range(20_000)]}
    assert "# the schema is too large for types" in stub_of({"value": {"allOf": [large, large]}})
    wide = {f"p{number}": {"type": "array", "items": {"type": "string"}} for number in range(3_000)}
    stub = stub_of(wide)
    assert stub == "def take(**arguments: Any) -> Any:  # the schema is too large for types\n    ...\n"


@pytest.mark.parametrize("choice", ["allOf", "anyOf", "oneOf"])
def test_references_that_multiply_take_no_time(choice: str) -> None:
    levels = {f"n{level}": {choice: [{"$ref": f"#/$defs/n{level + 1}"}] * 10} for level in range(15)}
    stub = stub_of({"value": {"$ref": "#/$defs/n0"}}, **{"$defs": levels})
    assert "value: Any" in stub
