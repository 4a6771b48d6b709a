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
    pytest.param({"type": "integer"}, "int", id="simple"),
    pytest.param({"type": ["string", "null"]}, "str | None", id="a list of types"),
    pytest.param({"type": "string", "nullable": True}, "str | None", id="nullable"),
    pytest.param({"enum": ["a", 2, True, None]}, "Literal['a', 2, True] | None", id="enum of several kinds"),
    pytest.param({"const": "x"}, "Literal['x']", id="const"),
    pytest.param({"oneOf": [{"const": "a"}, {"const": "b"}]}, "Literal['a', 'b']", id="choice of constants"),
    pytest.param({"type": "string", "enum": ["a", 1]}, "Literal['a']", id="enum with values of another type"),
    pytest.param({"enum": [0.5, 2]}, "float | int  # one of 0.5, 2", id="enum of what no Literal holds"),
    pytest.param(
        {"enum": [str(n) for n in range(300)]},
        "str  # one of '0', '1', '2', '3', '4' and 295 more",
        id="enum that is too long",
    ),
    pytest.param({"anyOf": [STRING, STRING, {"type": "null"}]}, "str | None", id="choice with doubles"),
    pytest.param({"anyOf": [STRING, {}]}, "Any", id="choice of anything"),
    pytest.param({"items": STRING}, "list[str]", id="array without its type"),
    pytest.param({"type": "array"}, "list[Any]", id="array of anything"),
    pytest.param({"type": "object"}, "dict[str, Any]", id="object of anything"),
    pytest.param({"additionalProperties": NUMBER}, "dict[str, float]", id="object as a mapping"),
    pytest.param({"patternProperties": {"^x": NUMBER}}, "dict[str, float]", id="object by patterns"),
    pytest.param(
        {"type": "array", "prefixItems": [STRING, NUMBER], "minItems": 2, "maxItems": 2},
        "tuple[str, float] | list[str | float]  # minItems 2; maxItems 2",
        id="tuple",
    ),
    pytest.param(
        {"items": [STRING, NUMBER], "additionalItems": {"type": "boolean"}},
        "list[str | float | bool]",
        id="tuple of draft 7 that goes on",
    ),
    pytest.param(A_OBJECT, "TakeValue", id="object"),
    pytest.param({**A_OBJECT, "additionalProperties": True}, "TakeValue | dict[str, Any]", id="open object"),
    pytest.param({"anyOf": [A_OBJECT, B_OBJECT]}, "TakeValue | TakeValue2", id="choice of objects"),
    pytest.param({"allOf": [{"$ref": "#/$defs/Node"}], "description": "d"}, "Node  # d", id="allOf of one"),
    pytest.param({"$ref": "#/$defs/Name"}, "str", id="reference to what needs no name"),
    pytest.param({"$ref": "#/$defs/Loop"}, "Loop", id="reference to a list of itself"),
    pytest.param({"allOf": [NUMBER, {"type": "integer"}]}, "int", id="allOf of types"),
    pytest.param({"allOf": [STRING, NUMBER]}, "Any  # no value is of all the types", id="contradiction"),
    pytest.param(False, "Any  # no value is valid here", id="false"),
    pytest.param({"enum": []}, "Any  # no value is valid here", id="enum of nothing"),
    pytest.param(True, "Any", id="true"),
    pytest.param({"not": STRING}, "Any  # a rule that no type expresses", id="what no type expresses"),
    pytest.param({"$ref": "#/nowhere"}, "Any  # a reference that leads nowhere", id="dead reference"),
    pytest.param({"$ref": "#/$defs/A%3CB%3E"}, "bool", id="reference that is quoted"),
]


@pytest.mark.parametrize(("schema", "annotation"), ANNOTATIONS)
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


def test_the_parts_of_an_all_of_are_one_type() -> None:
    base = {"allOf": [A_OBJECT, B_OBJECT, {"required": ["b"]}], "properties": {"c": {}}}
    stub = stub_of({"value": base})
    assert "class TakeValue(TypedDict):\n    c: NotRequired[Any]\n    a: str\n    b: float\n" in stub


def test_a_choice_that_only_bounds_an_object_leaves_its_type() -> None:
    either = [{"required": ["a"]}, {"required": ["b"]}]
    stub = stub_of({"value": {"type": "object", "properties": {"a": {}, "b": {}}, "anyOf": either}})
    assert "value: TakeValue)" in stub and stub.count("TypedDict") == 1


def test_what_stands_beside_a_choice_holds_in_each_branch() -> None:
    stub = stub_of({"value": {"type": "object", "properties": {"x": STRING}, "oneOf": [A_OBJECT, B_OBJECT]}})
    assert "class TakeValue(TypedDict):\n    x: NotRequired[str]\n    a: str\n" in stub
    assert "class TakeValue2(TypedDict):\n    x: NotRequired[str]\n    b: NotRequired[float]\n" in stub


def test_a_type_that_contains_itself_does_so_by_its_name() -> None:
    tree = {"type": "object", "properties": {"branches": {"items": {"$ref": "#/$defs/Tree"}}, "from": {}}}
    stub = stub_of({"value": {"$ref": "#/$defs/Tree"}}, **{"$defs": {"Tree": tree}})
    assert "'branches': NotRequired[list['Tree']]" in stub and "value: Tree)" in stub


def refers(name: str) -> dict[str, str]:
    return {"$ref": f"#/$defs/{name}"}


RECURSIVE = [
    pytest.param(
        {"anyOf": [STRING, {"items": refers("T")}, {"additionalProperties": refers("T")}, {"type": "null"}]},
        "T = str | list['T'] | dict[str, 'T'] | None\n",
        id="choice",
    ),
    pytest.param({"items": {"items": refers("T")}}, "T = list[list['T']]\n", id="list of lists"),
    pytest.param(
        {"properties": {"t": refers("T")}, "type": ["object", "null"]},
        "class T(TypedDict):\n    t: NotRequired['T2']\nT2 = T | None\n",
        id="object or nothing",
    ),
    pytest.param(
        {"properties": {"t": refers("T")}, "required": ["t"], "additionalProperties": True},
        "class T(TypedDict):\n    t: 'T2'\nT2 = T | dict[str, Any]\n",
        id="open object",
    ),
    pytest.param(
        {"anyOf": [refers("Other"), NUMBER]},
        "T = list['Other'] | float\nOther = T | list['Other']\n",
        id="two choices that contain each other",
    ),
    pytest.param(
        {"properties": {"t": refers("Other")}},
        "class T(TypedDict):\n    t: NotRequired[\"T | list['Other']\"]\nOther = T | list['Other']\n",
        id="choice with an object that contains it",
    ),
    pytest.param(refers("T"), "T = Any  # a type that is nothing but itself\n", id="nothing but itself"),
]


@pytest.mark.parametrize(("schema", "definitions"), RECURSIVE)
def test_each_type_that_contains_itself_has_a_name(schema: Any, definitions: str) -> None:
    other = {"anyOf": [refers("T"), {"items": refers("Other")}]}
    stub = stub_of({"value": refers("T")}, **{"$defs": {"T": schema, "Other": other}})
    assert stub.startswith(f"{definitions}def take(*, value: T")


@pytest.mark.parametrize("key", ["from", "a-b", "", "__x", "str", "Any", "TakeValue", "ﬁ", "\ud800", 'q"\n'])
def test_a_key_that_is_no_name_stands_in_a_mapping(key: str) -> None:
    stub = stub_of({"value": {"type": "object", "properties": {key: STRING}}})
    assert f'TakeValue = TypedDict("TakeValue", {{\n    {key!r}: NotRequired[str],\n}})' in stub


def test_equal_objects_are_one_type_and_others_of_its_name_get_a_number() -> None:
    item = {"type": "array", "items": A_OBJECT}
    stub = stub_of({"one": {"properties": {"x": A_OBJECT, "y": item}}, "One_x": A_OBJECT, "oneX": B_OBJECT})
    assert stub.count("    a: str\n") == 1
    assert (
        "y: NotRequired[list[TakeOneX]]" in stub and "One_x: TakeOneX" in stub and "oneX: TakeOneX2" in stub
    )


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
