"""The MCP servers of an agent file, by the validation table of the seed."""

from collections.abc import Callable
from pathlib import Path

import pytest

from subagent_server.agents.formats import load_agent_file
from subagent_server.run.agent_definition import AgentDefinition, ServerDefinition

WriteFile = Callable[[str, str | bytes], Path]
Load = Callable[[str], AgentDefinition]


@pytest.fixture
def servers(write: WriteFile) -> Load:
    def load(block: str) -> AgentDefinition:
        return load_agent_file(write("a.md", f"---\nname: a\ndescription: d\nmcpServers: {block}\n---\nx\n"))

    return load


FILES = ServerDefinition(
    type="stdio", command="files-mcp", args=["--root", "/srv", "8"], env={"DEBUG": "true"}
)
WEB = ServerDefinition(
    type="http", url="https://${HOST}/mcp", headers={"Authorization": "Bearer ${TOKEN}"}, timeout=30
)

FILES_KEYS = "{command: files-mcp, args: [--root, /srv, 8], env: {DEBUG: true}}"
WEB_KEYS = (
    "{type: HTTP, url: 'https://${HOST}/mcp', headers: {Authorization: 'Bearer ${TOKEN}'}, timeout: 30}"
)


@pytest.mark.parametrize(
    "block",
    [
        f"{{files: {FILES_KEYS}, web: {WEB_KEYS}}}",
        f"\n  files: {FILES_KEYS}\n  web: {WEB_KEYS}",
        f"\n  - files: {FILES_KEYS}\n  - web: {WEB_KEYS}",
        f"\n  - {{name: files, {FILES_KEYS[1:]}\n  - {{name: web, {WEB_KEYS[1:]}",
        f"\n  - {{files: {FILES_KEYS}, web: {WEB_KEYS}}}",
    ],
)
def test_servers_may_be_a_mapping_or_a_list_of_mappings(servers: Load, block: str) -> None:
    definition = servers(block)
    assert definition.faults == definition.warnings == []
    assert definition.mcp_servers == {"files": FILES, "web": WEB}


def test_every_key_of_a_server_is_read(servers: Load) -> None:
    definition = servers(
        "{x: {command: c, callTimeoutSeconds: 5, enabledTools: 'a, b', prefix: true, timeout: 1.5}, "
        "y: {type: sse, url: 'http://127.0.0.1:1/sse', disabled_tools: [c]}}"
    )
    assert definition.faults == []
    assert definition.mcp_servers["x"] == ServerDefinition(
        command="c", call_timeout_seconds=5, enabled_tools=["a", "b"], prefix=True, timeout=1.5
    )
    assert definition.mcp_servers["y"].disabled_tools == ["c"]


def test_a_timeout_of_zero_is_the_default(servers: Load) -> None:
    server = servers("{x: {command: c, timeout: 0, callTimeoutSeconds: 0}}").mcp_servers["x"]
    assert (server.timeout, server.call_timeout_seconds) == (60, 600)


@pytest.mark.parametrize(
    "block", ["github", "[github]", "github, github", "{github: }", "\n  - github\n  - {github: ~}"]
)
def test_a_server_that_is_only_named_is_kept_by_its_name(servers: Load, block: str) -> None:
    definition = servers(block)
    assert definition.mcp_servers == {}
    assert definition.named_servers == ["github"]
    assert bool(definition.faults) is ("~" in block), "twice is a fault"


@pytest.mark.parametrize(
    ("keys", "field"),
    [
        ("{}", ""),
        ("{type: stdio}", "command"),
        ("{command: ''}", "command"),
        ("{type: ws, url: 'http://h'}", "type"),
        ("{url: 'http://h'}", "type"),
        ("{type: http}", "url"),
        ("{type: sse, command: c}", "url"),
        ("{type: http, url: 'ftp://h/x'}", "url"),
        ("{type: http, url: 'http://'}", "url"),
        ("{type: http, url: 'http://[::1'}", "url"),
        ("{type: http, url: 'http://a b'}", "url"),
        ("{command: c, url: 'http://h'}", "url"),
        ("{command: c, headers: {A: b}}", "headers"),
        ("{type: http, url: 'http://h', env: {A: b}}", "env"),
        ("{command: c, enabledTools: [a], disabledTools: [b]}", "disabledTools"),
        ("{command: c, enabledTools: []}", "enabledTools"),
        ("{command: c, disabledTools: []}", "disabledTools"),
        ("{command: c, timeout: -1}", "timeout"),
        ("{command: c, timeout: soon}", "timeout"),
        ("{command: c, callTimeoutSeconds: inf}", "callTimeoutSeconds"),
        ("{command: c, args: one}", "args"),
        ("{command: c, env: {A: [1]}}", "env"),
        ("{command: c, prefix: perhaps}", "prefix"),
        ("{command: c, command: d}", "command"),
        ("text", ""),
        ("[command]", ""),
    ],
)
def test_each_rule_of_the_table_is_a_fault_that_names_server_and_field(
    servers: Load, keys: str, field: str
) -> None:
    definition = servers(f"\n  good: {{command: fine}}\n  bad: {keys}")
    assert definition.mcp_servers["good"] == ServerDefinition(command="fine")
    assert definition.faults
    assert all("mcpServers.bad" in fault for fault in definition.faults)
    assert field in definition.faults[0]


def test_a_server_without_a_name_or_with_a_name_twice_is_a_fault(servers: Load) -> None:
    assert "no name" in servers("[{command: c}]").faults[0]
    twice = servers("[{a: {command: c}}, {a: {command: d}}]")
    assert twice.mcp_servers["a"].command == "c"
    assert "mcpServers.a appears twice" in twice.faults[0]


def test_what_a_network_server_does_not_use_is_a_warning(servers: Load) -> None:
    definition = servers("{x: {type: http, url: 'http://h', command: c, args: [d]}}")
    assert definition.faults == []
    assert [warning.split()[0] for warning in definition.warnings] == [
        "mcpServers.x.command",
        "mcpServers.x.args",
    ]
