"""Servers that an agent file only names, looked up where Claude Code keeps them."""

import json
from pathlib import Path

import pytest

from subagent_server.agents.named_servers import (
    ServerFiles,
    UnknownServer,
    read_server_file,
    served_below,
    with_named_servers,
)
from subagent_server.agents.yaml_reader import AgentFileError
from subagent_server.run.agent_definition import AgentDefinition, ServerDefinition

ASKS = AgentDefinition(
    name="a", named_servers=["github"], mcp_servers={"own": ServerDefinition(command="own")}
)
GITHUB = {
    "command": "github-mcp",
    "args": ["--port", 8],
    "env": {"TOKEN": "${GITHUB_TOKEN}"},
    "timeout": 30_000,
}


def write(path: Path, servers: object) -> None:
    """Write a file as clients have it, tabs and all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"mcpServers": servers, "projects": {}}, indent="\t"), encoding="utf-8")


def test_a_name_is_looked_up_in_the_nearest_project_file_and_then_in_that_of_the_user(tmp_path: Path) -> None:
    home, project = tmp_path / "home", tmp_path / "project"
    below = project / "src" / "deep"
    below.mkdir(parents=True)
    environment = {"HOME": str(home)}
    write(home / ".claude.json", {"github": {"command": "of-the-user"}})
    found = with_named_servers(ASKS, below, environment)
    assert found.mcp_servers["github"].command == "of-the-user"
    write(project / ".mcp.json", {"broken": {"type": "ws"}, "github": GITHUB})
    found = with_named_servers(ASKS, below, environment)
    assert found.named_servers == [] and found.mcp_servers["own"] == ServerDefinition(command="own")
    assert found.mcp_servers["github"] == ServerDefinition(
        command="github-mcp", args=["--port", "8"], env={"TOKEN": "${GITHUB_TOKEN}"}, timeout=30
    ), "what is wrong with another server does not matter"


def test_a_server_of_the_user_for_this_project_goes_before_one_for_all(tmp_path: Path) -> None:
    def kept(command: str) -> dict[str, object]:
        return {"mcpServers": {"github": {"command": command}}}

    projects = {str(tmp_path / "project"): kept("here"), str(tmp_path / "other"): kept("there")}
    content = json.dumps({**kept("all"), "projects": projects, "history": "x" * (5 << 20)})
    (tmp_path / ".claude.json").write_text(content, encoding="utf-8")
    for directory, command in (("project/src", "here"), ("", "all")):
        found = with_named_servers(ASKS, tmp_path / directory, {"HOME": str(tmp_path)})
        assert found.mcp_servers["github"].command == command


def test_half_a_character_which_no_process_can_get_is_a_question_mark(tmp_path: Path) -> None:
    servers = {"github": {"command": "x", "env": {"TOKEN\ud800": "\ud800abcdefg12345"}}, "\ud800": {}}
    write(tmp_path / ".mcp.json", servers)
    found = with_named_servers(ASKS, tmp_path, {})
    assert found.mcp_servers["github"].env == {"TOKEN?": "?abcdefg12345"}
    assert ServerFiles().names(tmp_path / ".mcp.json") == ["github", "?"]


def test_in_a_process_of_a_run_the_agent_file_leads_to_the_servers_and_its_directory_does_not(
    tmp_path: Path,
) -> None:
    write(tmp_path / "sent-into" / ".mcp.json", {"github": {"command": "evil"}})
    write(tmp_path / "project" / ".mcp.json", {"github": GITHUB})
    agent = ASKS.model_copy(update={"source": tmp_path / "project" / "agents" / "a.md"})
    found = with_named_servers(agent, tmp_path / "sent-into", {"SUBAGENT_RUN_ID": "r"})
    assert found.mcp_servers["github"].command == "github-mcp"


def test_a_name_that_is_defined_nowhere_is_an_error_that_says_where_it_was_looked_for(tmp_path: Path) -> None:
    write(tmp_path / ".mcp.json", {"gitlab": GITHUB})
    for environment in ({}, {"HOME": f"/{'x' * 300}"}):  # as a closed home, one that no look can be made at
        with pytest.raises(UnknownServer, match=r"'github'.*\.mcp\.json: define it"):
            with_named_servers(ASKS, tmp_path, environment)
    write(tmp_path / "home" / ".claude.json", {})
    (tmp_path / ".mcp.json").unlink()
    with pytest.raises(
        UnknownServer, match=r"any \.mcp\.json from here upwards nor in .*\.claude\.json: define"
    ):
        with_named_servers(ASKS, tmp_path, {"HOME": str(tmp_path / "home")})
    assert with_named_servers(AgentDefinition(name="b"), tmp_path, {}).mcp_servers == {}


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("x.json", "{", "not JSON"),
        ("x.yaml", "a: [", "not YAML"),
        ("x.json", "[1]", "mapping of keys"),
        pytest.param(
            "x.json", '{"mcpServers": {"a": {"b": ' + "[" * 600 + "]" * 600 + "}}}", "deep", id="deep"
        ),
        ("x.json", '{"mcpServers": {"a": {"type": "ws", "url": "http://h"}}}', "mcpServers.a.type"),
        ("x.json", '{"mcpServers": {"a": {"url": "http://h"}}}', "mcpServers.a needs a type"),
    ],
)
def test_a_file_of_servers_that_breaks_a_rule_is_an_error_with_its_reason(
    tmp_path: Path, name: str, text: str, reason: str
) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(AgentFileError, match=reason):
        read_server_file(tmp_path / name)


def test_an_agent_that_is_a_server_is_found_by_its_name_and_by_a_variable(tmp_path: Path) -> None:
    config = "subagent: {name: b, description: d}\nrunner: command\ncommand: x\n"
    (tmp_path / "b.yaml").write_text(config, encoding="utf-8")
    entry = {"command": "subagent", "args": ["serve", "--config", "${FILE}"]}
    write(tmp_path / ".mcp.json", {"github": entry})
    found = served_below({"a": ASKS}, {"PATH": "", "FILE": "b.yaml"}, tmp_path)
    assert [each.name for each in found] == ["b"]
