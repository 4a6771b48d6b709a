"""`subagent init`: whether a client may call the tools without asking, and files that were planted for it."""

import json
import os
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import Cli
from tests.cli.init_clients import FILES, everything, servers, written

FIRST_TURN = {"env": {"MCP_CONNECT_TIMEOUT_MS": "30000"}}


def listed(path: Path) -> Any:
    """Return the settings in a file."""
    return json.loads(path.read_text(encoding="utf-8"))


def test_claude_code_may_use_the_server_without_asking_unless_that_is_not_wanted(
    cli: Cli, home: Path
) -> None:
    settings = cli.home / ".claude" / "settings.local.json"
    done = written(cli, "claude", "--no-approve")
    assert not settings.exists() and "It asks once if it may use the servers" in done.stderr
    settings.parent.mkdir()
    settings.write_text('{"permissions": {"deny": ["Bash(rm:*)"], "allow": [ "Read" ]}}', encoding="utf-8")
    shown = written(cli, "claude").stdout
    assert "+++ .claude/settings.local.json" in shown and "without asking each time" in shown
    assert listed(settings) == {
        "permissions": {"deny": ["Bash(rm:*)"], "allow": ["Read", "mcp__subagents"]},
        "enabledMcpjsonServers": ["subagents"],
        **FIRST_TURN,
    }
    assert cli("init", "claude").stderr.endswith("has this server already: nothing to do.\n")
    written(cli, "claude", "--scope", "user")
    assert listed(home / ".claude" / "settings.json") == {
        "permissions": {"allow": ["mcp__subagents"]},
        **FIRST_TURN,
    }


def test_claude_code_waits_longer_for_its_tools_unless_a_person_has_said_how_long(
    cli: Cli, home: Path
) -> None:
    settings = cli.home / ".claude" / "settings.local.json"
    written(cli, "claude")
    assert listed(settings)["env"] == FIRST_TURN["env"]
    assert cli("init", "claude", "--remove", "--yes").returncode == 0 and not settings.exists()
    for own in ('{"env": {"MCP_CONNECT_TIMEOUT_MS": "9000"}}', '{"env": {"A": "b"}}'):
        settings.parent.mkdir(exist_ok=True)
        settings.write_text(own, encoding="utf-8")
        written(cli, "claude")
        assert listed(settings)["env"] == {**FIRST_TURN["env"], **json.loads(own)["env"]}
        assert cli("init", "claude", "--remove", "--yes").returncode == 0
        assert settings.read_text(encoding="utf-8") == own


@pytest.mark.parametrize(
    "odd", ["{", "[]", '{"permissions": []}', '{"permissions": {"allow": "all"}}', '{"env": []}', "\xff"]
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


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        *product(
            (".mcp.json", ".claude/settings.local.json"), ("a link to a device", "a fifo", "a link out")
        ),
        (".claude/settings.local.json", "a folder that leads out"),
    ],
)
def test_a_file_that_a_project_has_planted_is_neither_read_nor_followed(
    cli: Cli, home: Path, tmp_path_factory: pytest.TempPathFactory, file: str, kind: str
) -> None:
    planted, outside = cli.home / file, tmp_path_factory.mktemp("outside") / Path(file).name
    outside.write_text("{}", encoding="utf-8")
    if kind == "a folder that leads out":
        planted.parent.symlink_to(outside.parent)
    else:
        planted.parent.mkdir(exist_ok=True)
        if kind == "a fifo":
            os.mkfifo(planted)
        else:
            planted.symlink_to("/dev/zero" if kind == "a device" else outside)
    done = cli("init", "claude", "--yes")
    assert done.returncode == 2 and "was left as it is, because " in done.stderr, done.stderr
    assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr
    assert outside.read_text(encoding="utf-8") == "{}"
    config = cli.home / ".mcp.json"
    assert config.is_symlink() or not config.is_file()
