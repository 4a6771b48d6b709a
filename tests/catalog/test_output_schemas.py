"""What `outputSchema` of an agent may hold: a schema, JSON text, or a file beside the agent."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from subagent_server.catalog.loading import load_agent_file
from subagent_server.domain.definitions import AgentDefinition

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
    ("schema", "faults", "warnings"),
    [
        (f"{{{REQUIRED}, {CLOSED}}}", [f"no result fits, because at its root {NEAR}: name it in both"], []),
        (f"{{{REQUIRED}}}", [], ["at its root required names 'summery' (nearest: 'summary')"]),
        (f"{{type: object, properties: {{a: {{{REQUIRED}, {CLOSED}}}}}}}", [], [f"at properties/a {NEAR}"]),
        (f"{{type: array, items: {{{REQUIRED}, {CLOSED}}}}}", [], [f"at items {NEAR}"]),
        (
            f"{{type: object, required: [a], properties: {{a: {{{REQUIRED}, {CLOSED}}}}}}}",
            [f"at properties/a {NEAR}"],
            [],
        ),
        ("{type: object, required: [x], properties: {summary: {}}}", [], []),
        ("{anyOf: [{required: [a]}, {required: [b]}], properties: {a: {}, b: {}}}", [], []),
        (f"{{{REQUIRED}, {CLOSED}, patternProperties: {{'^s': {{}}}}}}", [], []),
        (f"{{not: {{{REQUIRED}, {CLOSED}}}}}", [], []),
    ],
)
def test_a_required_property_that_the_schema_forbids_is_a_fault_if_no_result_can_fit(
    agent: Load, schema: str, faults: list[str], warnings: list[str]
) -> None:
    definition = agent(f"outputSchema: {schema}")
    for found, wanted in ((definition.faults, faults), (definition.warnings, warnings)):
        assert len(found) == len(wanted), found
        assert all(words in line for line, words in zip(found, wanted, strict=True)), found


def test_a_misspelt_keyword_of_a_schema_is_a_warning_with_the_keyword_that_was_meant(agent: Load) -> None:
    definition = agent(
        "outputSchema: {type: object, propertis: {a: {}}, required: [a], properies: 1, example: {}}"
    )
    assert definition.faults == []
    assert definition.warnings == [
        "outputSchema: at its root 'propertis' is no keyword, and means nothing (nearest: properties)",
        "outputSchema: at its root 'properies' is no keyword, and means nothing (nearest: properties)",
    ]
    right = (
        "{type: object, properties: {propertis: {enum: [1]}}, required: [propertis], patternProperties: {}}"
    )
    assert agent(f"outputSchema: {right}").warnings == []
