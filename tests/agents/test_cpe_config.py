"""Agents as CPE configurations, in a directory and for `serve --config`."""

from collections.abc import Callable
from pathlib import Path

import pytest

from subagent_server.agents.discover import discover
from subagent_server.agents.formats import load_agent_file, load_config
from subagent_server.agents.yaml_reader import AgentFileError
from subagent_server.run.agent_definition import CodeMode
from tests.agents.conftest import WriteFile

CONFIG = """\
version: "1.0"
models:
  - ref: big
    display_name: The Big One
    id: claude-opus-5-5
    type: anthropic
    api_key_env: MY_KEY
    base_url: http://127.0.0.1:9/v1
  - ref: small
    id: claude-haiku-5-5
    type: anthropic
    codeMode: {enabled: true, excludedTools: [own]}
subagent:
  name: review_changes
  description: Reviews a diff.
  outputSchemaPath: ./schemas/review.json
defaults:
  model: big
  systemPromptPath: ./prompts/review.prompt
  codeMode: {enabled: true, excludedTools: [draw, hold], maxTimeoutSeconds: 20}
mcpServers:
  files: {command: files-mcp, type: stdio, env: {ROOT: "${ROOT_DIR}"}}
"""


@pytest.fixture
def config(write: WriteFile) -> Callable[[str], Path]:
    def write_config(text: str) -> Path:
        write("schemas/review.json", '{"type": "object"}')
        write("prompts/review.prompt", "You review {{ .Diff }}.\n")
        return write("review.cpe.yaml", text)

    return write_config


WriteConfig = Callable[[str], Path]


def test_a_configuration_of_the_seed_is_one_agent(config: WriteConfig) -> None:
    agent = load_agent_file(config(CONFIG))
    assert agent.faults == agent.warnings == []
    assert (agent.name, agent.description) == ("review_changes", "Reviews a diff.")
    assert (agent.model, agent.api_key_env) == ("claude-opus-5-5", "MY_KEY")
    assert agent.base_url == "http://127.0.0.1:9/v1"
    assert agent.system_prompt == "You review {{ .Diff }}."
    assert agent.output_schema == {"type": "object"}
    assert agent.code_mode == CodeMode(enabled=True, excluded_tools=["draw", "hold"], max_timeout_seconds=20)
    assert agent.mcp_servers["files"].env == {"ROOT": "${ROOT_DIR}"}
    assert agent.unknown == {}


def test_code_mode_of_a_model_replaces_the_default_whole(config: WriteConfig) -> None:
    agent = load_agent_file(config(CONFIG.replace("model: big", "model: small")))
    assert agent.code_mode == CodeMode(enabled=True, excluded_tools=["own"])
    assert (agent.model, agent.api_key_env, agent.base_url) == ("claude-haiku-5-5", "ANTHROPIC_API_KEY", None)


def test_keys_of_an_agent_may_stand_under_subagent_defaults_or_at_the_top(config: WriteConfig) -> None:
    text = CONFIG.replace("  model: big", "  model: big\n  limits: {maxTurns: 5}").replace(
        "  description:", "  tools: Read, Grep\n  description:"
    )
    agent = load_config(config(text + "isolation: worktree\nbudgetUsd: 2\neffort: high\n"))
    assert agent.faults == agent.warnings == []
    assert (agent.limits.max_turns, str(agent.limits.budget_usd)) == (5, "2")
    assert (agent.tools, agent.isolation, agent.effort) == (["Read", "Grep"], "worktree", "high")


def test_unknown_keys_are_kept_with_one_warning(config: WriteConfig) -> None:
    text = CONFIG.replace("    id: claude-opus-5-5", "    id: claude-opus-5-5\n    context_window: 200000")
    agent = load_agent_file(config(text + "theme: dark\n"))
    assert agent.unknown == {"models.big.context_window": 200000, "theme": "dark"}
    assert len(agent.warnings) == 1
    assert agent.faults == []


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        pytest.param("  name: review_changes\n", "", "subagent.name is missing", id="no-name"),
        pytest.param(
            "  description: Reviews a diff.\n", "", "subagent.description is missing", id="no-description"
        ),
        pytest.param("  model: big\n", "", "defaults.model is missing", id="no-default-model"),
        pytest.param("model: big", "model: huge", "'huge'", id="unknown-ref"),
        pytest.param("models:", "others:", "defaults.model", id="no-models"),
        pytest.param("    id: claude-opus-5-5\n", "", "'big' has no id", id="no-id"),
        pytest.param(
            "type: anthropic\n    api", "type: openai\n    api", "type must be anthropic", id="other-type"
        ),
        pytest.param("ref: small", "ref: big", "two models", id="ref-twice"),
        pytest.param("review.prompt", "gone.prompt", "gone.prompt", id="unreadable-prompt"),
        pytest.param("review.json", "gone.json", "gone.json", id="unreadable-schema"),
        pytest.param(
            "defaults:", "subagent: {name: x}\ndefaults:", "subagent appears twice", id="block-twice"
        ),
        pytest.param("mcpServers:", "model: x\nmcpServers:", "'model' appears twice", id="model-twice"),
        pytest.param("type: stdio", "type: pipe", "mcpServers.files.type", id="server-type"),
        pytest.param("api_key_env: MY_KEY", "api_key_env: sk-ant-abc", "apiKeyEnv", id="key-instead-of-name"),
    ],
)
def test_a_missing_or_wrong_piece_is_a_fault_in_a_directory_and_refused_as_a_configuration(
    config: WriteConfig, old: str, new: str, reason: str
) -> None:
    path = config(CONFIG.replace(old, new, 1))
    catalog = discover([path.parent])
    assert len(catalog.agents) == 1
    faults = [problem.reason for problem in catalog.problems if problem.kind == "fault"]
    assert len(faults) == 1 and reason in faults[0]
    with pytest.raises(AgentFileError) as caught:
        load_config(path)
    assert faults[0] in caught.value.sentence
    assert "\n" not in caught.value.sentence


def test_the_names_of_limits_in_real_configurations_are_understood(config: WriteConfig) -> None:
    text = CONFIG.replace("maxTimeoutSeconds: 20", "maxTimeout: 20")
    text = text.replace("    api_key_env: MY_KEY", "    api_key_env: MY_KEY\n    max_output: 64000")
    agent = load_agent_file(config(text))
    assert (agent.max_tokens, agent.warnings, agent.faults) == (64000, [], [])
    assert agent.code_mode is not None
    assert agent.code_mode.max_timeout_seconds == 20


def test_a_markdown_agent_can_be_served_by_itself(write: WriteFile) -> None:
    path = write("helper.md", "---\ndescription: d\n---\nYou help.\n")
    assert load_config(path).name == "helper"
    with pytest.raises(AgentFileError, match="maxTurns"):
        load_config(write("bad.md", "---\nname: a\nmaxTurns: many\n---\nx"))
    with pytest.raises(AgentFileError, match="no front matter"):
        load_config(write("README.md", "# Hello\n"))


def test_a_missing_configuration_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AgentFileError, match=r"gone\.yaml.*no such file"):
        load_config(tmp_path / "gone.yaml")
