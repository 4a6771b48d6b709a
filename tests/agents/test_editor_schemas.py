"""The JSON Schemas of agent files accept what the loader accepts, and refuse wrong values as it does."""

from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from subagent_server.agents.discover import discover
from subagent_server.agents.formats import load_config, split
from subagent_server.agents.templates import MEANINGS, agent_schema, config_schema
from subagent_server.agents.yaml_reader import AGENT_FIELDS, LIMIT_FIELDS
from tests.helpers.processes import REPOSITORY

EXAMPLES = REPOSITORY / "docs" / "examples" / "cpe"


def front_matter(path: Path) -> object:
    """Return the front matter of an agent file as an editor reads it."""
    return yaml.safe_load(split(path, path.read_text(encoding="utf-8")).text)


def test_the_schemas_are_schemas() -> None:
    Draft202012Validator.check_schema(agent_schema())
    Draft202012Validator.check_schema(config_schema())


def test_every_key_has_a_meaning_and_every_meaning_a_key() -> None:
    assert set(MEANINGS) == {*AGENT_FIELDS.values(), *LIMIT_FIELDS.values()}


@pytest.mark.parametrize("path", sorted((REPOSITORY / "agents").glob("*.md")), ids=lambda path: path.stem)
def test_the_example_agents_are_valid(path: Path) -> None:
    Draft202012Validator(agent_schema()).validate(front_matter(path))


@pytest.mark.parametrize(
    "keys",
    [
        {"maxTurns": "many"},
        {"maxTurns": 0},
        {"runner": "other"},
        {"tools": {"Read": "some"}},
        {"limits": {"onAskTimeout": "wait"}},
        {"mcpServers": {"a": {"type": "carrier-pigeon"}}},
        {"codeMode": "often"},
    ],
)
def test_a_value_that_the_loader_refuses_is_not_valid(keys: dict[str, object], tmp_path: Path) -> None:
    whole = {"name": "a", "description": "d", **keys}
    assert not Draft202012Validator(agent_schema()).is_valid(whole)
    (tmp_path / "a.md").write_text(f"---\n{yaml.safe_dump(whole)}---\nYou help.\n", encoding="utf-8")
    assert discover([tmp_path]).agents["a"].faults


def test_a_document_with_neither_name_nor_description_is_not_valid() -> None:
    assert not Draft202012Validator(agent_schema()).is_valid({"tools": ["Read"]})


def test_the_example_configuration_is_valid_and_loads_without_a_remark() -> None:
    path = EXAMPLES / "review.cpe.yaml"
    Draft202012Validator(config_schema()).validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    agent = load_config(path)
    assert (agent.name, agent.max_tokens, agent.warnings) == ("review_changes", 32000, [])
    assert "You review one change" in agent.system_prompt
    assert isinstance(agent.output_schema, dict)


def test_the_example_parent_serves_the_example_configuration() -> None:
    parent = yaml.safe_load((EXAMPLES / "parent.cpe.yaml").read_text(encoding="utf-8"))
    server = parent["mcpServers"]["reviewer"]
    assert (server["command"], server["args"][:2]) == ("subagent", ["serve", "--config"])
    assert (EXAMPLES / server["args"][2]).is_file()
