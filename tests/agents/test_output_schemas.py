"""What `outputSchema` of an agent may hold: a schema, JSON text, or a file beside the agent."""

import asyncio
import json
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from subagent_server.agents.formats import load_agent_file
from subagent_server.run.agent_definition import AgentDefinition
from subagent_server.toolbox.basic import FinalAnswer

WriteFile = Callable[[str, str | bytes], Path]
Load = Callable[[str], AgentDefinition]


def test_an_output_schema_keeps_its_types(agent: Load) -> None:
    definition = agent(
        "outputSchema:\n  type: object\n  additionalProperties: false\n  properties:\n"
        "    n: {type: integer, minimum: 1, maximum: 2.5}\n    v: {enum: [yes, no, true, null, '1', 1]}\n"
        "    again: {$ref: '#'}\n    meta: {$ref: 'https://json-schema.org/draft/2020-12/schema'}"
    )
    assert definition.faults == []
    assert isinstance(definition.output_schema, dict)
    assert definition.output_schema["additionalProperties"] is False
    properties = json.loads(json.dumps(definition.output_schema["properties"]))
    assert properties["n"] == {"type": "integer", "minimum": 1, "maximum": 2.5}
    assert properties["v"]["enum"] == ["yes", "no", True, None, "1", 1]


@pytest.mark.parametrize(
    ("written", "schema"), [("true", True), ("""'{"type": "array"}'""", {"type": "array"})]
)
def test_an_output_schema_may_be_a_truth_value_or_json_text(
    agent: Load, written: str, schema: object
) -> None:
    assert agent(f"outputSchema: {written}").output_schema == schema


def test_a_schema_file_is_found_beside_the_agent_and_taken_in(write: WriteFile) -> None:
    write("team/schemas/out.json", '{"type": "object", "required": ["a"]}')
    path = write("team/a.md", "---\nname: a\ndescription: d\noutputSchemaPath: ./schemas/out.json\n---\nx")
    definition = load_agent_file(path)
    assert definition.faults == []
    assert definition.output_schema == {"type": "object", "required": ["a"]}


@pytest.mark.parametrize(
    "content",
    [
        pytest.param("", id="empty"),
        pytest.param("{", id="not-json"),
        pytest.param("[]", id="a-list"),
        pytest.param('"x"', id="a-text"),
        pytest.param('{"type": 7}', id="not-a-schema"),
        pytest.param('{"minimum": NaN}', id="not-a-number"),
        pytest.param('{"title": "\\ud800"}', id="half-a-character"),
        pytest.param("[" * 100_000, id="deep-text"),
        pytest.param('{"not": ' * 90 + "{}" + "}" * 90, id="deep-schema"),
        pytest.param(b"\xff\xfe", id="not-utf8"),
    ],
)
def test_a_schema_file_that_is_no_schema_is_a_fault_with_its_path(
    write: WriteFile, content: str | bytes
) -> None:
    write("out.json", content)
    definition = load_agent_file(
        write("a.md", "---\nname: a\ndescription: d\noutputSchemaPath: out.json\n---\nx")
    )
    assert definition.output_schema is None
    assert len(definition.faults) == 1
    assert "out.json" in definition.faults[0]


REQUIRED = "type: object, required: [verdict, summery], properties: {verdict: {}, summary: {}}"
CLOSED = "additionalProperties: false"
NEAR = (
    "required names 'summery', which properties lacks and additionalProperties forbids (nearest: 'summary')"
)


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        (f"{{{REQUIRED}, {CLOSED}}}", "its root"),
        (f"{{type: object, required: [a], properties: {{a: {{{REQUIRED}, {CLOSED}}}}}}}", "properties/a"),
        (f"{{{REQUIRED}}}", None),
        (f"{{type: object, properties: {{a: {{{REQUIRED}, {CLOSED}}}}}}}", None),
        (f"{{type: array, items: {{{REQUIRED}, {CLOSED}}}}}", None),
        ("{type: object, required: [x], properties: {summary: {}}}", None),
        ("{anyOf: [{required: [a]}, {required: [b]}], properties: {a: {}, b: {}}}", None),
        (f"{{{REQUIRED}, {CLOSED}, patternProperties: {{'^s': {{}}}}}}", None),
        (f"{{not: {{{REQUIRED}, {CLOSED}}}}}", None),
    ],
)
def test_a_required_property_that_the_schema_forbids_is_a_fault_if_no_result_can_fit(
    agent: Load, schema: str, place: str | None
) -> None:
    definition = agent(f"outputSchema: {schema}")
    told = f"outputSchema: no result fits, because at {place} {NEAR}: name it in both"
    assert definition.faults == ([] if place is None else [told]) and definition.warnings == []


MOST_SECONDS = 0.5  # five times what it takes: a core that others share counts more time for the same work
"""Of a processor, for a listing that reads one agent file."""
MANY = {f"p{number}": {"type": "string"} for number in range(1_300)}
TWICE: dict[str, dict[str, Any]] = {
    f"L{level}": {"allOf": [{"$ref": f"#/$defs/L{level + 1}"}] * 2} for level in range(40)
}
RANGE = "[\u0100-\uffff]"


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        pytest.param({"properties": MANY}, None, id="as-large-as-may-be"),
        pytest.param({"properties": {name: {} for name in MANY}}, None, id="empty-schemas"),
        pytest.param({"properties": {f"p{n}": {} for n in range(10_000)}}, "4,000 values", id="too-large"),
        pytest.param("[" * 300_000, "256 Ki characters", id="a-long-text"),
        pytest.param("[" * 200_000, "not JSON", id="deep"),
        pytest.param({**TWICE["L0"], "$defs": {**TWICE, "L40": {}}}, None, id="references-that-multiply"),
        pytest.param(
            {
                "properties": {f"p{n}": {"$ref": f"#a{n}"} for n in range(600)},
                "$defs": {f"d{n}": {"$anchor": f"a{n}"} for n in range(600)},
            },
            None,
            id="anchors",
        ),
        pytest.param(
            {
                "$schema": "http://json-schema.org/draft-04/schema#",
                "enum": [*range(1_900), *map(str, range(1_900))],
            },
            None,
            id="values-that-do-not-sort",
        ),
        pytest.param(
            {"properties": {f"p{n}": {"pattern": f"{RANGE}{n}"} for n in range(1_000)}},
            "its patterns take too long",
            id="costly-patterns",
        ),
        pytest.param({"pattern": f"(?i){RANGE * 9}"}, "has more than 40 characters", id="a-costly-pattern"),
        pytest.param({"pattern": "a" * 2_000}, "has more than 1000 characters", id="a-long-pattern"),
        pytest.param({f"{'zy' * 40}{n}": n for n in range(2_500)}, None, id="unknown-keywords"),
    ],
)
def test_no_schema_costs_a_listing_more_than_half_a_second(
    write: WriteFile, schema: object, reason: str | None
) -> None:
    write("out.json", schema if isinstance(schema, str) else json.dumps(schema))
    file = write("a.md", "---\nname: a\ndescription: d\noutputSchemaPath: out.json\n---\nx")
    load_agent_file(write("b.md", "---\nname: b\ndescription: d\noutputSchema: {}\n---\nx"))  # imports
    took = []
    for _ in range(3):
        began = time.thread_time()
        definition = load_agent_file(file)
        took.append(time.thread_time() - began)
    assert min(took) < MOST_SECONDS
    if reason is None:
        assert definition.faults == []
    else:
        assert reason in definition.faults[0]


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (False, "at its root it is false"),
        ({"not": {}}, "at its root not forbids everything"),
        ({"not": True}, "not forbids everything"),
        ({"$ref": "#"}, "at $ref it needs itself, without an end"),
        ({"type": "string", "enum": [1, None]}, "no value is left by type, enum and const"),
        ({"enum": []}, "no value is left"),
        ({"const": 1, "enum": ["1", True]}, "no value is left"),
        ({"type": "array", "minItems": 3, "maxItems": 2}, "minItems is greater than maxItems"),
        ({"allOf": [{"type": "string"}, {"type": ["object", "null"]}]}, "no value is left"),
        ({"anyOf": [False, {"not": {}}]}, "at anyOf/0 it is false"),
        ({"type": "object", "required": ["a"], "properties": {"a": False}}, "at properties/a it is false"),
        (
            {"type": "object", "required": ["next"], "properties": {"next": {"$ref": "#"}}},
            "at properties/next/$ref it needs itself, without an end",
        ),
        ({"type": "array", "minItems": 1, "items": {"$ref": "#"}}, "it needs itself"),
    ],
)
def test_a_schema_that_nothing_fits_is_a_fault_with_the_reason(agent: Load, schema: object, why: str) -> None:
    (fault,) = agent(f"outputSchema: {json.dumps(schema)}").faults
    assert "outputSchema: no result fits, because" in fault and why in fault


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "allOf": [{"type": "number"}], "const": 1.0},
        {
            "type": "object",
            "required": ["next"],
            "properties": {"next": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}},
        },
        {"type": "array", "items": {"$ref": "#"}},
        {"required": ["a"], "properties": {"a": False}},
        {"minLength": 3, "maxLength": 2},
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "$ref": "#/definitions/a",
            "not": {},
            "definitions": {"a": {}},
        },
    ],
)
def test_a_schema_that_something_fits_is_taken(agent: Load, schema: dict[str, Any]) -> None:
    assert agent(f"outputSchema: {json.dumps(schema)}").faults == []


DRAFTS: dict[str, tuple[dict[str, Any], object, object]] = {
    "http://json-schema.org/draft-04/schema#": ({"maximum": 3, "exclusiveMaximum": True}, 2, 3),
    "http://json-schema.org/draft-06/schema#": ({"dependencies": {"a": ["b"]}}, {"b": 1}, {"a": 1}),
    "https://json-schema.org/draft-07/schema": (
        {"items": [{"type": "string"}], "additionalItems": False},
        ["a"],
        ["a", "b"],
    ),
    "https://json-schema.org/draft/2019-09/schema": (
        {"items": {"$recursiveRef": "#"}, "type": ["array", "null"]},
        [[None]],
        [[1]],
    ),
    "https://json-schema.org/draft/2020-12/schema": ({"prefixItems": [{"type": "string"}]}, ["a"], [1]),
}


@pytest.mark.process
@pytest.mark.parametrize("draft", DRAFTS)
def test_each_draft_is_judged_by_its_own_rules(write: WriteFile, draft: str) -> None:
    rules, right, wrong = DRAFTS[draft]
    write("out.json", json.dumps({"$schema": draft, **rules}))
    agent = load_agent_file(write("a.md", "---\nname: a\ndescription: d\noutputSchemaPath: out.json\n---\nx"))
    assert agent.faults == [] and agent.output_schema is not None
    final = FinalAnswer(agent.output_schema)
    assert final.definition()["input_schema"]["type"] == "object"
    assert asyncio.run(final.call({"value": wrong})).is_error
    assert not asyncio.run(final.call({"value": right})).is_error
    assert final.answer == right


@pytest.mark.parametrize(
    "draft", ["http://json-schema.org/draft-03/schema#", "http://example.com/schema", ""]
)
def test_an_unknown_draft_is_a_fault(agent: Load, draft: object) -> None:
    for schema in ({"$schema": draft}, {"properties": {"a": {"$schema": draft}}}):
        (fault,) = agent(f"outputSchema: {json.dumps(schema)}").faults
        assert "is not known: those of the drafts 4, 6, 7, 2019-09 and 2020-12 are" in fault


@pytest.mark.process
@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "https://json-schema.org/evil/not-there.json"},
        {"properties": {"x": {"$ref": "http://example.com/x.json"}}},
        {"$ref": "#/x", "x": {"$ref": "file:///etc/passwd"}},
        {"$id": "http://example.com/", "$ref": "x.json"},
        {"$ref": "http://["},
        {"$dynamicRef": "#meta"},
    ],
)
def test_nothing_is_looked_up_for_a_reference(
    agent: Load, schema: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *given, **_: asked.append(given))
    (fault,) = agent(f"outputSchema: {json.dumps(schema)}").faults
    assert "leads nowhere" in fault
    result = asyncio.run(FinalAnswer(schema).call({"value": {"x": 1}}))
    assert result.is_error and "leads nowhere" in result.text
    assert asked == []


@pytest.mark.process
def test_a_meta_schema_is_at_hand(agent: Load) -> None:
    for draft in ("http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2020-12/schema"):
        schema = agent(f"outputSchema: {{$ref: '{draft}'}}").output_schema
        assert schema is not None
        final = FinalAnswer(schema)
        assert asyncio.run(final.call({"value": {"type": 7}})).is_error
        assert not asyncio.run(final.call({"value": {"type": "string"}})).is_error


def test_a_part_that_only_a_reference_reaches_is_judged_too(agent: Load) -> None:
    (fault,) = agent('outputSchema: {"$ref": "#/x", "x": {"type": "strin"}}').faults
    assert "it is not a JSON Schema 2020-12 (at type: " in fault
