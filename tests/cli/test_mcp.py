"""`subagent mcp`: the servers of an agent or of a file, tried by hand (seed "CLI Commands")."""

import json
import sys
from pathlib import Path

import pytest
import yaml

from tests.cli.command import Cli, Completed
from tests.helpers.mcp_servers import scripted
from tests.helpers.repositories import make_repository

ECHO = {"name": "echo", "description": "Repeats its text.", "outputSchema": {"type": "object"}}
FILES = scripted(
    ECHO,
    "read_file",
    {"name": "fails", "does": {"content": [{"type": "text", "text": "no such thing"}], "isError": True}},
    {"name": "hangs", "does": {"hang": True}},
    {"name": "tabs", "does": {"content": [{"type": "text", "text": "a\tb\n"}]}},
    stderr=["ready"],
    keys={
        "type": "stdio",
        "enabledTools": ["echo", "fails", "hangs", "tabs", "read_fil"],
        "callTimeoutSeconds": 1,
    },
)
SERVERS = {
    "files": FILES,
    "web": {
        "type": "http",
        "url": "https://api.example.com/mcp",
        "headers": {"Authorization": "Bearer abcdefghij0123456789"},
        "timeout": 30,
    },
    "broken": scripted(stderr=["no licence for $LICENCE"], exit=4, keys={"env": {"LICENCE": "L-1"}}),
    "unset": {"command": "x", "args": ["${NO_SUCH_VARIABLE}"]},
}


@pytest.fixture
def config(cli: Cli) -> str:
    """A configuration without a subagent, as a parent of the seed has it."""
    cli.have_boxes()
    path = cli.home / "parent.cpe.yaml"
    path.write_text(yaml.safe_dump({"version": "1.0", "mcpServers": SERVERS}), encoding="utf-8")
    return str(path)


def test_list_servers_shows_every_server_with_its_kind_without_secrets_and_does_not_connect(
    cli: Cli, config: str
) -> None:
    done = cli("mcp", "list-servers", "--config", config)
    assert done.returncode == 0 and done.stdout.startswith("Configured MCP Servers:\n- ")
    assert "- files (Type: stdio, Timeout: 60s)\n  Command: " in done.stdout
    assert "- web (Type: http, Timeout: 30s)\n  URL: https://api.example.com/mcp\n" in done.stdout
    assert "  Works: in a box of its own (with the network)\n" in done.stdout
    found = cli.json("mcp", "list-servers", "--config", config)["servers"]
    assert [server["name"] for server in found] == sorted(SERVERS)
    assert found[-1]["headers"] == {"Authorization": "Bearer ***"}


def test_info_connects_and_prints_name_and_version(cli: Cli, config: str) -> None:
    done = cli("mcp", "info", "files", "--config", config)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Connected to server: files\n") and "Tools: 5" in done.stdout
    assert done.stderr == "", "what it prints before it is connected is for its failures"
    assert "  Works: in a box of its own (with the network)" in done.stdout
    facts = cli.json("mcp", "info", "files", "--config", config)
    assert facts["works"] == "box"
    assert facts["name"] == "scripted" and facts["protocolVersion"] == "2025-11-25"


def test_list_tools_lists_offered_all_or_filtered_tools(cli: Cli, config: str) -> None:
    words = ("mcp", "list-tools", "files", "--config", config)
    done = cli(*words)
    assert "Filter: whitelist (enabledTools: echo, " in done.stdout
    assert "Tools: 5 in all, 4 offered, 1 filtered out" in done.stdout
    assert "\necho\n  Repeats its text.\n  Input schema:\n" in done.stdout
    assert "Output schema:" in done.stdout and "read_file" not in done.stdout
    assert "'read_fil', which the server does not offer: the tools here are echo, read_file, " in done.stderr
    every = cli(*words, "--show-all").stdout
    assert "\nread_file (filtered out)\n" in every and "\necho\n" in every
    (held,) = cli.json(*words, "--show-filtered")["tools"]
    assert held["name"] == "read_file" and held["filtered"] is True
    assert cli(*words, "--show-all", "--show-filtered").returncode == 2


def test_call_tool_prints_the_result_as_text_and_as_json(cli: Cli, config: str) -> None:
    done = cli("mcp", "call-tool", "files", "echo", '{"a": 1}', "--config", config)
    assert (done.returncode, done.stdout) == (0, '{"a": 1}\n')
    words = ("--server", "files", "--tool", "tabs", "--args", "-", "--config", config)
    assert cli("mcp", "call-tool", *words, stdin="{}").stdout == "a\tb\n", "as it is, for a pipe"
    found = cli.json("mcp", "call-tool", "files", "fails", "--config", config, code=1)
    assert found["isError"] is True and found["content"][0]["text"] == "no such thing"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["call-tool", "files", "fails"], 1, "no such thing"),
        (["call-tool", "files", "hangs"], 124, "did not answer within 1 s"),
        (["call-tool", "files", "ecko"], 2, "the tools here are"),
        (["call-tool", "files", "echo", "[1]"], 2, "give an object"),
        (["call-tool", "files", "echo", "{"], 2, "no JSON"),
        (["call-tool", "files", "echo", '{"a": NaN}'], 2, "no JSON"),
        (["call-tool", "files", "echo", '{"a": "\\ud800"}'], 2, "no JSON"),
        (["call-tool", "files"], 2, "which tool"),
        (["info", "broken"], 6, "broken ended with exit code 4; it said: no licence for L-1"),
        (["info", "fils"], 2, "the servers here are broken, files, unset, web"),
        (["info", "unset"], 2, "NO_SUCH_VARIABLE is not set for mcpServers.unset.args"),
    ],
)
def test_an_error_is_one_sentence_and_an_exit_code(
    cli: Cli, config: str, words: list[str], code: int, said: str
) -> None:
    done = cli("mcp", *words, "--config", config)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert said in done.stderr.splitlines()[-1]


def test_the_servers_of_an_agent_are_meant_by_its_name_and_those_of_any_file_by_its_path(cli: Cli) -> None:
    cli.agent("worker", mcpServers={"files": FILES, "shared": None}, env={"WORD": "x"})
    (cli.home / ".mcp.json").write_text(
        json.dumps({"mcpServers": {"shared": {"command": "touch", "args": ["started"]}}}), encoding="utf-8"
    )
    for words in (["--agent", "worker"], ["--config", "agents/worker.md"]):
        names = [each["name"] for each in cli.json("mcp", "list-servers", *words)["servers"]]
        assert names == ["files", "shared"]
    only = cli.json("mcp", "list-servers", "--config", ".mcp.json")["servers"]
    assert [each["name"] for each in only] == ["shared"] and not (cli.home / "started").exists()
    assert cli("mcp", "list-servers").returncode == 2, "whose?"
    assert cli("mcp", "list-servers", "--agent", "nobody").returncode == 3
    assert cli("mcp", "list-servers", "--config", "nowhere.yaml").returncode == 2
    cli.agent("wrong", mcpServers={"x": {"type": "ws"}})
    cli.leaves_with(2, "mcpServers.x.type", "mcp", "list-servers", "--agent", "wrong")
    for keys, why in (({"network": "no way"}, "network must be"), ({"cwd": "~nobody-here/x"}, "be entered")):
        cli.agent("odd", mcpServers={"files": FILES}, **keys)
        cli.leaves_with(2, why, "mcp", "info", "files", "--agent", "odd")


def test_a_server_that_is_an_agent_of_this_installation_is_not_started_by_hand(cli: Cli) -> None:
    entry = {"command": sys.executable, "args": ["-m", "subagent_server", "serve", "--config", "./coder.md"]}
    cli.agent("lead", mcpServers={"coder": entry}, codeMode=True)
    listed = cli("mcp", "list-servers", "--agent", "lead").stdout
    assert "  Works: in the run itself (it is an agent of this installation)\n" in listed
    why = "No process is started for the MCP server 'coder', because it is an agent of this installation: "
    why += "`subagent prompt lead --servers` shows its tool.\n"
    cli.leaves_with(2, why, "mcp", "info", "coder", "--agent", "lead")
    done = cli("tools", "lead")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", why)


def test_a_user_without_a_name_and_a_home_has_boxes_of_servers_and_no_files_of_clients(
    cli: Cli, config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)  # as in a container for any user
    monkeypatch.delitem(cli.environment, "HOME")
    assert cli("mcp", "info", "files", "--config", config).returncode == 0
    refused = cli("init", "claude", "--print")
    assert refused.returncode == 6 and refused.stderr.endswith("HOME names no directory: set it.\n")


def test_a_server_that_is_tried_by_hand_works_where_a_run_would_start_it(cli: Cli) -> None:
    cli.have_boxes()
    (cli.home / ".mcp.json").write_text("{}", encoding="utf-8")
    tools: list[dict[str, object]] = [
        {"name": "key", "does": {"env": "ANTHROPIC_API_KEY"}},
        {"name": "writes", "does": {"keep": "here.txt"}},
        {"name": "overwrites", "does": {"keep": ".mcp.json"}},
        {"name": "plants", "does": {"keep": "agents/planted.md"}},
    ]
    entry = scripted(*tools)
    servers = {
        "box": entry,
        "refused": {"command": "sh", "args": ["-c", "true"], "sandbox": False},
        "never": {**entry, "network": False},
        "peeks": {"command": "sh", "args": ["-c", "grep -c -e hidden -e fetch .git/config >&2"]},
    }
    make_repository(cli.home)
    with (cli.home / ".git/config").open("a", encoding="utf-8") as file:
        file.write("[remote]\n\turl = https://x:hidden@host/\n\tfetch = x\n")
    config = cli.home / "servers.json"
    config.write_text(json.dumps({"mcpServers": servers}), encoding="utf-8")

    def call(server: str, tool: str, **env: str) -> Completed:
        return cli("mcp", "call-tool", server, tool, "--config", str(config), env=env)

    assert call("box", "key").stdout == "(unset)\n"
    assert call("box", "writes").stdout == "1\n" and (cli.home / "here.txt").exists()
    state = Path(cli.environment["XDG_STATE_HOME"]) / "subagent"
    made = [state, *state.rglob("*")]
    assert len(made) > 3 and not any(place.stat().st_mode & 0o077 for place in made if place.is_dir())
    assert "Read-only file system" in call("box", "overwrites").stdout
    assert (cli.home / ".mcp.json").read_text(encoding="utf-8") == "{}"
    (cli.home / "agents").mkdir(exist_ok=True)
    assert "Read-only file system" in call("box", "plants").stdout
    assert call("peeks", "any").stderr.endswith("said: 1.\n")
    refused = call("refused", "key")
    assert refused.returncode == 6 and "would look for what it executes" in refused.stderr
    without = call("box", "key", SUBAGENT_BWRAP="/nowhere/bwrap")
    assert without.stdout == f"{cli.environment['ANTHROPIC_API_KEY']}\n"
    assert "Warning: MCP servers work without a box here" in without.stderr
    never = call("never", "key", SUBAGENT_BWRAP="/nowhere/bwrap")
    assert never.returncode == 6 and "mcpServers.never.network cannot be kept" in never.stderr
