"""Every row of the table "Validation" of the seed on MCP clients, in both formats of agent files.

The seed wants a `type` always. Here a `command` without one means stdio, as in files of Claude Code
(SPEC section 8), so that row is about what has no command.
"""

from pathlib import Path

import pytest
import yaml

from subagent_server.agents.formats import load_config, load_file
from subagent_server.agents.yaml_reader import AgentFileError
from tests.agents.conftest import WriteFile

WEB = "type: http, url: https://h/mcp"
ROWS = [
    ("type: required", "{url: 'https://h/mcp'}", "{type: http, url: 'https://h/mcp'}", "type"),
    ("type: oneof=stdio sse http", "{type: ws, url: 'https://h'}", "{type: sse, url: 'https://h'}", "type"),
    ("command: required_if=Type stdio", "{type: stdio}", "{type: stdio, command: c}", "command"),
    ("url: excluded_if=Type stdio", "{type: stdio, command: c, url: 'http://h'}", "{command: c}", "url"),
    ("url: required_if=Type sse", "{type: sse}", "{type: sse, url: 'http://h/sse'}", "url"),
    ("url: required_if=Type http", "{type: http}", "{type: http, url: 'http://h/mcp'}", "url"),
    ("url: https_url|http_url", "{type: http, url: 'ws://h'}", "{type: http, url: 'http://h:8/x'}", "url"),
    ("timeout: gte=0", "{command: c, timeout: -1}", "{command: c, timeout: 0}", "timeout"),
    ("env: excluded_unless=Type stdio", f"{{{WEB}, env: {{A: b}}}}", "{command: c, env: {A: b}}", "env"),
    (
        "headers: excluded_if=Type stdio",
        "{command: c, headers: {A: b}}",
        f"{{{WEB}, headers: {{A: b}}}}",
        "headers",
    ),
    (
        "enabledTools: omitempty,min=1",
        "{command: c, enabledTools: []}",
        "{command: c, enabledTools: [a]}",
        "enabledTools",
    ),
    (
        "enabledTools: excluded_with=DisabledTools",
        "{command: c, disabledTools: [a], enabledTools: [b]}",
        "{command: c, enabledTools: [b]}",
        "disabledTools",
    ),
    (
        "disabledTools: omitempty,min=1",
        "{command: c, disabledTools: []}",
        "{command: c, disabledTools: [a]}",
        "disabledTools",
    ),
    (
        "disabledTools: excluded_with=EnabledTools",
        "{command: c, enabledTools: [b], disabledTools: [a]}",
        "{command: c, disabledTools: [a]}",
        "disabledTools",
    ),
]
CONFIG = """\
version: "1.0"
models: [{ref: big, id: claude-opus-5-5, type: anthropic, api_key_env: KEY}]
subagent: {name: a, description: d}
defaults: {model: big}
"""


@pytest.mark.parametrize(("broken", "kept", "field"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_the_row_of_the_table_is_kept(write: WriteFile, broken: str, kept: str, field: str) -> None:
    def configuration(server: str) -> Path:
        servers = yaml.safe_load(server)
        return write("a.cpe.yaml", CONFIG + yaml.safe_dump({"mcpServers": {"s": servers}}))

    def markdown(server: str) -> Path:
        return write("a.md", f"---\nname: a\ndescription: d\nmcpServers:\n  s: {server}\n---\nWork.\n")

    for file in (configuration, markdown):
        faults = load_file(file(broken)).definition.faults
        assert faults and faults[0].startswith("mcpServers.s") and field in faults[0]
        good = load_file(file(kept)).definition
        assert good.faults == [] and list(good.mcp_servers) == ["s"]
    with pytest.raises(AgentFileError, match=field):
        load_config(configuration(broken))
    assert load_config(configuration(kept)).name == "a"
