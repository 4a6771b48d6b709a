"""A schema that is put inside another still means what it meant."""

from typing import Any

import jsonschema
import pytest

from subagent_server.run.schemas import embedded

TREE: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$id": "https://example.org/tree",
    "type": "object",
    "properties": {"name": {"$ref": "#/$defs/name"}, "children": {"type": "array", "items": {"$ref": "#"}}},
    "required": ["name"],
    "$defs": {"name": {"type": "string", "minLength": 1}},
}
ANCHORED: dict[str, Any] = {"$ref": "#word", "$defs": {"word": {"$anchor": "word", "type": "string"}}}


def outer(schema: Any) -> dict[str, Any]:
    """Return a schema of an object whose `output` is as `schema` has it."""
    return {"type": "object", "properties": {"output": embedded(schema, "#/properties/output")}}


@pytest.mark.parametrize(
    ("output", "valid"),
    [
        ({"name": "a", "children": [{"name": "b", "children": []}]}, True),
        ({"name": "a", "children": [{"name": ""}]}, False),
        ({"name": "a", "children": [{}]}, False),
        ({"children": []}, False),
    ],
)
def test_references_of_an_embedded_schema_point_into_it(output: Any, valid: bool) -> None:
    validator = jsonschema.Draft202012Validator(outer(TREE))
    assert validator.is_valid({"output": output}) == valid


def test_a_reference_to_an_anchor_stays_as_it_is() -> None:
    validator = jsonschema.Draft202012Validator(outer(ANCHORED))
    assert validator.is_valid({"output": "text"})
    assert not validator.is_valid({"output": 7})


def test_an_embedded_schema_has_no_root_of_its_own_and_the_original_is_as_it_was() -> None:
    before = repr(TREE)
    inside = embedded(TREE, "#/properties/output")
    assert not {"$id", "$schema"} & set(inside)
    assert inside["properties"]["children"]["items"] == {"$ref": "#/properties/output"}
    assert repr(TREE) == before


ROOT = "https://example.org/a"
INNER = {"$id": "item", "$ref": "#/$defs/m", "$defs": {"m": {"type": "null"}}}
NAMES = {"properties": {"$id": {"type": "string"}, "$ref": {"$ref": "#/$defs/n"}}}


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        (NAMES, {"$id": "x", "$ref": 1}, {"$ref": "x"}),
        ({"enum": [{"$ref": "#/x", "$id": "y"}]}, {"$ref": "#/x", "$id": "y"}, {"$ref": "#/x"}),
        ({"$id": ROOT, "$ref": f"{ROOT}#/$defs/n"}, 1, "x"),
        ({"$id": ROOT, "items": {"$ref": "a"}, "type": ["array", "null"]}, [None], ["x"]),
        ({"items": {"$ref": "item"}, "$defs": {"item": INNER}}, [None], [1]),
        ({"const": {"a": [1]}}, {"a": [1]}, {"a": []}),
    ],
    ids=["names", "values", "its own address", "a relative address", "a root inside", "a constant"],
)
def test_names_values_and_addresses_keep_their_meaning(schema: Any, right: Any, wrong: Any) -> None:
    schema = schema | {"$defs": {"n": {"type": "integer"}} | schema.get("$defs", {})}
    assert jsonschema.Draft202012Validator(schema).is_valid(right)
    validator = jsonschema.Draft202012Validator(outer(schema))
    assert validator.is_valid({"output": right}) and not validator.is_valid({"output": wrong})


def test_references_to_elsewhere_and_plain_values_are_left_alone() -> None:
    away = {"$ref": "https://example.org/other#/$defs/x"}
    assert embedded(away, "#/properties/output") == away
    assert [embedded(value, "#/x") for value in (True, 7, None, "text")] == [True, 7, None, "text"]


def test_a_reference_to_another_document_than_the_root_stays_as_it_is() -> None:
    schema = {
        "$id": "https://a.example/one",
        "properties": {"p": {"$ref": "two#/q"}, "r": {"$ref": "one#/q"}},
    }
    assert embedded(schema, "#/o")["properties"] == {"p": {"$ref": "two#/q"}, "r": {"$ref": "#/o/q"}}
