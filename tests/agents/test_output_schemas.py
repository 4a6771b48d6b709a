"""What `outputSchema` of an agent may hold: a schema, JSON text, or a file beside the agent."""

import asyncio
import json
import socket
import time
from typing import Any

import pytest

from subagent_server.agents.formats import load_agent_file
from subagent_server.toolbox.basic import FinalAnswer
from tests.agents.conftest import Load, WriteFile


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
        pytest.param(
            '{"$schema": "http://json-schema.org/draft-07/schema#", "dependencies": {"a": {}, "b": ["c"]}}',
            id="dependencies-of-two-kinds",
        ),
        pytest.param(
            r'{"$schema": "http://json-schema.org/draft-04/schema#", "patternProperties": {"\\p{L}": {}}}',
            id="a-pattern-of-draft-4",
        ),
    ],
)
def test_a_schema_file_that_cannot_be_used_is_a_fault_with_its_path(
    write: WriteFile, agent: Load, content: str | bytes
) -> None:
    write("out.json", content)
    definition = agent("outputSchemaPath: out.json")
    (fault,) = definition.faults
    assert definition.output_schema is None and "out.json" in fault


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
        pytest.param(
            {
                "type": "object",
                "required": ["z"],
                "properties": {"z": {"anyOf": [{"const": 1}]}},
                "allOf": [{"anyOf": [{"required": [f"p{n}{m}"]} for m in range(4)]} for n in range(200)],
            },
            None,
            id="choices-that-multiply",
        ),
        pytest.param(
            {"allOf": [{"enum": list(range(first, first + 1_900))} for first in (0, 5_000)]},
            None,
            id="values-to-compare",
        ),
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
def test_each_draft_is_judged_by_its_own_rules(write: WriteFile, agent: Load, draft: str) -> None:
    rules, right, wrong = DRAFTS[draft]
    write("out.json", json.dumps({"$schema": draft, **rules}))
    definition = agent("outputSchemaPath: out.json")
    assert definition.faults == [] and definition.output_schema is not None
    final = FinalAnswer(definition.output_schema)
    assert final.definition()["input_schema"]["type"] == "object"
    assert asyncio.run(final.call({"value": wrong})).is_error
    assert not asyncio.run(final.call({"value": right})).is_error
    assert final.answer == right


@pytest.mark.process
@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"x": {"$ref": "http://example.com/x.json"}}},
        {"$ref": "#/x", "x": {"$ref": "file:///etc/passwd"}},
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
