"""The agents of the project, of its pages and of its template are agents without a single remark."""

import re
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from pydantic.alias_generators import to_camel

from subagent_server.agents.discover import discover
from subagent_server.agents.formats import load_agent_file
from subagent_server.agents.known_names import ALIASES
from subagent_server.agents.templates import EXAMPLE_AGENTS, TEMPLATE
from subagent_server.run.agent_definition import (
    AgentDefinition,
    CodeMode,
    Limits,
    SandboxLimits,
    ServerDefinition,
)

ROOT = Path(__file__).parents[2]
AGENTS = ROOT / "agents"
LINES = TEMPLATE.read_text(encoding="utf-8")


def test_the_examples_load_without_a_remark() -> None:
    catalog = discover([AGENTS])
    assert catalog.problems == []
    assert {"reviewer", "scout", "timekeeper", "triage"} <= set(catalog.agents)


def test_the_package_has_the_examples_and_no_second_copy_of_them() -> None:
    assert EXAMPLE_AGENTS.resolve() == AGENTS


@pytest.mark.parametrize("name", ["reviewer", "scout", "triage"])
def test_an_example_names_its_tools_a_known_model_and_sane_limits(name: str) -> None:
    agent = discover([AGENTS]).agents[name]
    assert agent.tools is not None
    assert set(agent.tools) <= {"Read", "Grep", "Glob", "Bash"}
    assert agent.model in ALIASES
    assert 10 <= agent.limits.max_turns <= 100
    assert 0 < agent.limits.timeout_seconds <= 3600
    assert len(agent.description) > 80
    assert len(load_agent_file(AGENTS / f"{name}.md").system_prompt) > 1000


def test_the_reviewer_and_triage_answer_in_a_form_that_a_program_can_read() -> None:
    agents = discover([AGENTS]).agents
    finding = {"file": "a.py", "line": 3, "severity": "major", "title": "t", "detail": "d"}
    review = {"summary": "s", "verdict": "request_changes", "findings": [finding]}
    Draft202012Validator(agents["reviewer"].output_schema).validate(review)  # type: ignore[arg-type]
    evidence = [{"source": "log:12", "quote": "Killed"}]
    triage = {"cause": "c", "evidence": evidence, "confidence": "high", "nextStep": "n"}
    Draft202012Validator(agents["triage"].output_schema).validate(triage)  # type: ignore[arg-type]


def test_the_examples_in_the_page_on_agents_load_without_a_remark(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "agents.md").read_text(encoding="utf-8")
    found = re.findall(r"^```(markdown|yaml)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    blocks = [block for block in found if not block[1].startswith("mcpServers:")]  # one key, not a file
    assert len(blocks) == 2
    for kind, text in blocks:
        suffix = "md" if kind == "markdown" else "yaml"
        (tmp_path / f"example.{suffix}").write_text(text, encoding="utf-8")
    catalog = discover([tmp_path])
    assert catalog.problems == []
    assert list(catalog.agents) == ["changelog", "review_changes"]


def test_the_page_on_agents_names_every_key() -> None:
    page = (ROOT / "docs" / "agents.md").read_text(encoding="utf-8")
    kinds = (AgentDefinition, Limits, CodeMode, SandboxLimits, ServerDefinition)
    fields = {to_camel(name) for kind in kinds for name in kind.model_fields}
    missing = (
        fields
        - {
            *("source", "distinctTool", "faults", "warnings", "unknown", "namedServers", "readFrom"),
            *("lines", "byContract", "verdict", "served", "inputSchema", "programHash", "otherModels"),
        }
        - set(re.findall(r"`(\w+)`", page))
    )
    assert missing == set()


@pytest.mark.parametrize("block", re.findall(r"(?:^#\w.*\n(?:^#  .*\n)*)", LINES, re.MULTILINE))
def test_every_line_of_the_template_works_when_uncommented(block: str, tmp_path: Path) -> None:
    path = tmp_path / "a.md"
    path.write_text(LINES.replace(block, re.sub("(?m)^#", "", block)), encoding="utf-8")
    definition = load_agent_file(path)
    assert (definition.faults, definition.warnings) == ([], [])
    assert set(definition.ask) <= set(definition.tools or [])
    assert definition.ask or definition.agents or definition.output_schema
