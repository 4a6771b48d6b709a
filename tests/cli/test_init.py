"""`subagent init`: registers the server with a client and changes nothing else in its file."""

import json
import os
import pty
import shutil
import stat
import sys
import sysconfig
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import BOUND, Cli, Completed, hear
from tests.helpers.wait import wait_for

COMMAND = str(Path(sysconfig.get_path("scripts")) / "subagent")
SERVE = ["serve", "--role", "parent"]
FOR_CLAUDE = {"command": COMMAND, "args": SERVE, "alwaysLoad": True}
FILES = {
    ("claude", "project"): ".mcp.json",
    ("claude", "user"): "home/.claude.json",
    ("codex", "user"): "home/.codex/config.toml",
    ("codex", "project"): ".codex/config.toml",
    ("gemini", "user"): "home/.gemini/settings.json",
    ("gemini", "project"): ".gemini/settings.json",
    ("cursor", "project"): ".cursor/mcp.json",
    ("cursor", "user"): "home/.cursor/mcp.json",
    ("claude-desktop", "user"): (
        "home/Library/Application Support/Claude/claude_desktop_config.json"
        if sys.platform == "darwin"
        else "home/.config/Claude/claude_desktop_config.json"
    ),
}
USUAL = {
    "claude": "project",
    "codex": "user",
    "gemini": "user",
    "cursor": "project",
    "claude-desktop": "user",
}
ELSEWHERE = ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "GEMINI_CLI_HOME", "XDG_CONFIG_HOME")


@pytest.fixture
def home(cli: Cli) -> Path:
    """The home directory of the command, which knows none of the usual variables."""
    home = cli.home / "home"
    home.mkdir()
    kept = {name: value for name, value in cli.environment.items() if name not in ELSEWHERE}
    cli.environment = {**kept, "HOME": str(home)}
    return home


def written(cli: Cli, *words: str) -> Completed:
    """Run `init` so that it writes."""
    done = cli("init", *words, "--yes")
    assert done.returncode == 0, done.stderr
    return done


def servers(path: Path) -> dict[str, Any]:
    """Return the servers that a file holds."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".toml":
        found: dict[str, Any] = tomllib.loads(text)["mcp_servers"]
    else:
        found = json.loads(text)["mcpServers"]
    return found


def everything(directory: Path) -> dict[str, bytes]:
    """Return all files below a directory."""
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("client", "scope"), list(FILES))
def test_each_client_gets_the_server_in_its_own_file(cli: Cli, home: Path, client: str, scope: str) -> None:
    written(cli, client, "--scope", scope)
    entry = servers(cli.home / FILES[client, scope])["subagents"]
    assert entry["command"] == COMMAND and entry["args"][:3] == SERVE


@pytest.mark.parametrize("client", list(USUAL))
def test_a_second_time_there_is_nothing_to_do(cli: Cli, home: Path, client: str) -> None:
    written(cli, client)
    before = everything(cli.home)
    assert str(cli.home / FILES[client, USUAL[client]]) in before
    done = cli("init", client)
    assert (done.returncode, done.stdout) == (0, "")
    assert "has this server already: nothing to do." in done.stderr
    assert everything(cli.home) == before


def test_the_change_is_shown_before_it_is_made(cli: Cli, home: Path) -> None:
    (cli.home / ".mcp.json").write_text('{\n  "mcpServers": {}\n}\n', encoding="utf-8")
    shown = written(cli, "claude").stdout.splitlines()
    assert shown[:2] == ["--- .mcp.json", "+++ .mcp.json"]
    assert '-  "mcpServers": {}' in shown and '+    "subagents": {' in shown


def test_without_a_person_and_without_yes_nothing_is_written(cli: Cli, home: Path) -> None:
    done = cli("init", "codex")
    assert done.returncode == 5
    assert "+[mcp_servers.subagents]" in done.stdout
    assert done.stderr == "subagent: nothing was written: add --yes to write this without being asked.\n"
    assert not (home / ".codex").exists()


@pytest.mark.parametrize(("answer", "is_written"), [("y\n", True), ("n\n", False), ("\n", False)])
def test_init_asks_before_it_writes(cli: Cli, home: Path, answer: str, is_written: bool) -> None:
    outer, inner = pty.openpty()
    try:
        with cli.start("init", "claude", stdin=inner, stderr=inner) as command:
            assert "subagents" in command.hear("+}")
            hear(outer, "Write this?")
            os.write(outer, answer.encode())
            wait_for(lambda: command.process.poll() is not None, BOUND, "the end of the command")
            assert command.process.returncode == 0
    finally:
        os.close(outer)
        os.close(inner)
    assert (cli.home / ".mcp.json").exists() is is_written


def test_print_shows_the_entry_and_touches_no_file(cli: Cli, home: Path) -> None:
    (cli.home / ".mcp.json").write_text("not to be read", encoding="utf-8")
    before = everything(cli.home)
    pasted = json.loads(cli("init", "claude", "--print").stdout)
    assert pasted == {"mcpServers": {"subagents": FOR_CLAUDE}}
    table = tomllib.loads(cli("init", "codex", "--print").stdout)["mcp_servers"]["subagents"]
    assert table["args"] == SERVE
    assert everything(cli.home) == before


def test_another_server_of_this_name_is_replaced_only_by_force(cli: Cli, home: Path) -> None:
    config = cli.home / ".mcp.json"
    other = '{"mcpServers": {"subagents": {"command": "other", "env": {"A": "b"}}, "mine": {"url": "x"}}}'
    config.write_text(other, encoding="utf-8")
    done = cli("init", "claude", "--yes")
    assert done.returncode == 2 and "add --force to replace it." in done.stderr
    assert '-{"mcpServers": {"subagents": {"command": "other"' in done.stdout
    assert config.read_text(encoding="utf-8") == other
    written(cli, "claude", "--force")
    assert servers(config) == {"subagents": FOR_CLAUDE, "mine": {"url": "x"}}


def test_keys_that_a_person_added_to_the_entry_are_kept(cli: Cli, home: Path) -> None:
    written(cli, "gemini")
    config = home / ".gemini" / "settings.json"
    data = json.loads(config.read_text(encoding="utf-8"))
    data["mcpServers"]["subagents"] |= {"trust": True, "timeout": 900000}
    data["mcpServers"]["subagents"]["env"]["GITHUB_TOKEN"] = "$GITHUB_TOKEN"
    config.write_text(json.dumps(data), encoding="utf-8")
    before = config.read_bytes()
    assert cli("init", "gemini").returncode == 0
    assert config.read_bytes() == before


def test_a_file_keeps_its_mode_and_a_new_one_is_for_those_it_belongs_to(cli: Cli, home: Path) -> None:
    config = home / ".codex" / "config.toml"
    config.parent.mkdir()
    config.write_text("", encoding="utf-8")
    config.chmod(0o640)
    written(cli, "codex")
    written(cli, "gemini")
    written(cli, "claude")
    files = (config, home / ".gemini" / "settings.json", cli.home / ".mcp.json")
    assert [oct(stat.S_IMODE(path.stat().st_mode)) for path in files] == ["0o640", "0o600", "0o644"]


def test_a_link_still_leads_to_the_file(cli: Cli, home: Path) -> None:
    real = cli.home / "dotfiles" / "codex.toml"
    real.parent.mkdir()
    real.write_text("# mine\n", encoding="utf-8")
    config = home / ".codex" / "config.toml"
    config.parent.mkdir()
    config.symlink_to(real)
    written(cli, "codex")
    assert config.is_symlink() and "subagents" in servers(real)


def test_flags_that_are_given_are_passed_to_the_server_as_absolute_paths(cli: Cli, home: Path) -> None:
    flags = ("--agents", "agents", "--agents", "/opt/agents", "--runs", "elsewhere", "--max-runs", "3")
    written(cli, "claude", *flags)
    places = ["--agents", f"{cli.home}/agents", "--agents", "/opt/agents", "--runs", f"{cli.home}/elsewhere"]
    entry = servers(cli.home / ".mcp.json")["subagents"]
    assert entry["args"] == [*SERVE, *places, "--max-runs", "3"]
    mistyped = cli("init", "claude", "--print", "--agent", "nobody-*")
    assert mistyped.returncode == 2 and "--agent 'nobody-*' fits no agent" in mistyped.stderr


def test_a_client_that_does_not_start_servers_in_the_project_gets_an_entry_with_every_directory(
    cli: Cli, home: Path
) -> None:
    written(cli, "cursor")
    args = servers(cli.home / ".cursor" / "mcp.json")["subagents"]["args"]
    assert args == [*SERVE, "--cwd", f"{cli.home}", "--runs", f"{cli.home}/runs"], "its agents need trust"
    named = written(cli, "cursor", "--force", "--agents", "mine")
    assert "--agents" in named.stdout and f"{cli.home}/mine" in named.stdout


def test_codex_passes_the_key_on_and_waits_as_long_as_the_server_does(cli: Cli, home: Path) -> None:
    written(cli, "codex")
    entry = servers(home / ".codex" / "config.toml")["subagents"]
    assert {"ANTHROPIC_API_KEY", "SUBAGENT_RUN_TOKEN"} <= set(entry["env_vars"])
    assert (entry["tool_timeout_sec"], entry["required"]) == (300, True)


def test_variables_name_other_homes_of_a_client(cli: Cli, home: Path) -> None:
    cli.environment["CODEX_HOME"] = str(cli.home / "codex")
    cli.environment["CLAUDE_CONFIG_DIR"] = str(cli.home / "claude")
    written(cli, "codex")
    written(cli, "claude", "--scope", "user")
    assert (cli.home / "codex" / "config.toml").exists() and (cli.home / "claude" / ".claude.json").exists()


def test_a_scope_that_a_client_does_not_have_is_a_mistake(cli: Cli, home: Path) -> None:
    done = cli("init", "claude-desktop", "--scope", "project")
    assert done.returncode == 2 and "leave --scope out." in done.stderr


def test_a_name_on_path_is_written_only_where_it_leads_here_for_good(cli: Cli, home: Path) -> None:
    folder, venv = cli.home / "bin", cli.home / "venv"
    folder.mkdir()
    (folder / "subagent").symlink_to(COMMAND)
    (venv / "bin").mkdir(parents=True)
    (venv / "pyvenv.cfg").write_text("", encoding="utf-8")
    shutil.copy(folder / "subagent", venv / "bin" / "subagent", follow_symlinks=False)
    path = cli.environment["PATH"]

    def command(client: str, *before: Path) -> Any:
        cli.environment["PATH"] = os.pathsep.join([*map(str, before), path])
        return cli.json("init", client, code=5)["entry"]["command"]

    assert command("claude", folder) == "subagent"
    assert command("claude", venv / "bin", folder) == "subagent"
    assert command("claude", venv / "bin") == COMMAND
    assert command("cursor", folder) == COMMAND
    (folder / "subagent").unlink()
    (folder / "subagent").write_text("#!/bin/sh\n", encoding="utf-8")
    (folder / "subagent").chmod(0o755)
    assert command("claude", folder) == COMMAND


def test_for_programs_there_is_json(cli: Cli, home: Path) -> None:
    pending = cli.json("init", "claude", code=5)
    assert pending["state"] == "refused" and not (cli.home / ".mcp.json").exists()
    done = cli.json("init", "claude", "--yes")
    assert (done["client"], done["state"], done["file"]) == ("claude", "written", f"{cli.home}/.mcp.json")
    assert done["entry"] == FOR_CLAUDE and done["diff"] == pending["diff"]
    assert cli.json("init", "claude")["state"] == "current"


def listed(path: Path) -> Any:
    """Return the settings in a file."""
    return json.loads(path.read_text(encoding="utf-8"))


def test_claude_code_may_use_the_server_without_asking_unless_that_is_not_wanted(
    cli: Cli, home: Path
) -> None:
    settings = cli.home / ".claude" / "settings.local.json"
    done = written(cli, "claude", "--no-approve")
    assert not settings.exists() and "the default answer is no" in done.stderr
    settings.parent.mkdir()
    settings.write_text('{"permissions": {"deny": ["Bash(rm:*)"], "allow": [ "Read" ]}}', encoding="utf-8")
    shown = written(cli, "claude").stdout
    assert "+++ .claude/settings.local.json" in shown and "without asking each time" in shown
    assert listed(settings) == {
        "permissions": {"deny": ["Bash(rm:*)"], "allow": ["Read", "mcp__subagents"]},
        "enabledMcpjsonServers": ["subagents"],
    }
    assert cli("init", "claude").stderr.endswith("has this server already: nothing to do.\n")
    written(cli, "claude", "--scope", "user")
    assert listed(home / ".claude" / "settings.json") == {"permissions": {"allow": ["mcp__subagents"]}}


@pytest.mark.parametrize(
    "odd", ["{", "[]", '{"permissions": []}', '{"permissions": {"allow": "all"}}', "\xff"]
)
def test_settings_that_cannot_be_changed_leave_both_files_as_they_are(cli: Cli, home: Path, odd: str) -> None:
    settings = cli.home / ".claude" / "settings.local.json"
    settings.parent.mkdir()
    settings.write_text(odd, encoding="latin-1")
    before = everything(cli.home)
    done = cli("init", "claude", "--yes")
    assert done.returncode == 2 and "add --no-approve." in done.stderr and done.stderr.count("\n") == 1
    assert everything(cli.home) == before


@pytest.mark.parametrize(
    ("client", "key", "value", "other"),
    [("codex", "default_tools_approval_mode", "approve", "prompt"), ("gemini", "trust", True, False)],
)
def test_an_entry_approves_the_tools_and_what_a_person_decided_is_kept(
    cli: Cli, home: Path, client: str, key: str, value: object, other: object
) -> None:
    path = cli.home / FILES[client, "user"]
    written(cli, client, "--no-approve")
    assert key not in servers(path)["subagents"]
    written(cli, client, "--force")
    assert servers(path)["subagents"][key] == value
    text = path.read_text(encoding="utf-8")
    decided = text.replace(json.dumps(value), json.dumps(other))
    path.write_text(decided, encoding="utf-8")
    assert cli("init", client, "--yes").returncode == 0
    assert path.read_text(encoding="utf-8") == decided != text


def test_a_project_file_with_a_path_of_this_machine_says_that_it_is_of_no_use_to_others(
    cli: Cli, home: Path
) -> None:
    assert "no use to a colleague" in written(cli, "claude").stderr
    assert "no use to a colleague" not in written(cli, "claude", "--scope", "user").stderr
    folder = cli.home / "bin"
    folder.mkdir()
    (folder / "subagent").symlink_to(COMMAND)
    cli.environment["PATH"] = f"{folder}{os.pathsep}{cli.environment['PATH']}"
    assert "no use to a colleague" not in written(cli, "claude", "--force").stderr
    assert servers(cli.home / ".mcp.json")["subagents"]["command"] == "subagent"


@pytest.mark.parametrize("file", [".mcp.json", ".claude/settings.local.json"])
@pytest.mark.parametrize("kind", ["a link to a device", "a fifo", "a link out", "a folder that leads out"])
def test_a_file_that_a_project_has_planted_is_neither_read_nor_followed(
    cli: Cli, home: Path, tmp_path_factory: pytest.TempPathFactory, file: str, kind: str
) -> None:
    planted, outside = cli.home / file, tmp_path_factory.mktemp("outside") / Path(file).name
    outside.write_text("{}", encoding="utf-8")
    if kind == "a folder that leads out":
        planted = cli.home / ".claude" / "settings.local.json"
        planted.parent.symlink_to(outside.parent)
    else:
        planted.parent.mkdir(exist_ok=True)
        if kind == "a fifo":
            os.mkfifo(planted)
        else:
            planted.symlink_to("/dev/zero" if kind == "a link to a device" else outside)
    done = cli("init", "claude", "--yes")
    assert done.returncode == 2 and "was left as it is, because " in done.stderr, done.stderr
    assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr
    assert outside.read_text(encoding="utf-8") == "{}"
    config = cli.home / ".mcp.json"
    assert config.is_symlink() or not config.is_file()


OVER_HTTP: dict[str, Any] = {
    "claude": {
        "type": "http",
        "url": "URL",
        "headers": {"Authorization": "Bearer TOKEN"},
        "alwaysLoad": True,
    },
    "codex": {
        "url": "URL",
        "http_headers": {"Authorization": "Bearer TOKEN"},
        "required": True,
        "startup_timeout_sec": 30,
        "tool_timeout_sec": 300,
        "default_tools_approval_mode": "approve",
    },
    "gemini": {"httpUrl": "URL", "headers": {"Authorization": "Bearer TOKEN"}, "trust": True},
    "cursor": {"url": "URL", "headers": {"Authorization": "Bearer TOKEN"}},
}


@pytest.mark.parametrize("client", OVER_HTTP)
def test_over_http_each_client_gets_a_token_of_its_own_which_is_shown_nowhere(
    cli: Cli, home: Path, client: str
) -> None:
    done = written(cli, client, "--http")
    tokens = home / ".local" / "state" / "subagent" / "http-tokens"
    assert stat.S_IMODE(tokens.stat().st_mode) == 0o600
    (token,) = [line.split()[1] for line in tokens.read_text().splitlines() if line.startswith(client)]
    assert token not in done.stdout + done.stderr and "TOKEN" in done.stdout
    file = cli.home / FILES[client, "user"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    read = tomllib.loads if client == "codex" else json.loads
    servers = read(file.read_text(encoding="utf-8"))
    entry = servers["mcp_servers" if client == "codex" else "mcpServers"]["subagents"]
    wanted = json.dumps(OVER_HTTP[client]).replace("TOKEN", token)
    assert entry == json.loads(wanted.replace("URL", "http://127.0.0.1:8101/mcp"))
    again = cli("init", client, "--http", "--yes")
    assert "nothing to do" in again.stderr, "the token is kept"
    shown = json.loads(cli("init", client, "--http", "--json", "--yes").stdout)
    assert token not in json.dumps(shown)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("claude-desktop", "--http"), "reads no server over HTTP"),
        (("claude", "--http", "--scope", "project"), "A token does not belong into a file of the project"),
        (("claude", "--http", "127.0.0.1:8101"), "is no URL"),
    ],
)
def test_what_cannot_be_registered_over_http_is_refused(
    cli: Cli, home: Path, words: tuple[str, ...], sentence: str
) -> None:
    done = cli("init", *words, "--yes")
    assert done.returncode == 2 and sentence in done.stderr
    assert not (home / ".local").exists()
