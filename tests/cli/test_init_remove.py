"""`subagent init --remove`: takes out what `init` wrote, and leaves everything else as it is."""

import json
from pathlib import Path

import pytest

from tests.cli.command import Cli
from tests.cli.init_clients import COMMAND, FILES, SERVE, everything, servers, written
from tests.helpers.scale import sampled

THEIRS = {
    ".json": '{\n    "theme": "dark",\n    "mcpServers": {"mine": {"command": "x"}},\n    "n": [1e5]\n}\n',
    ".toml": '# mine\nmodel = "o3"\n\n[mcp_servers.mine]\ncommand = "x"\n\n# of tui\n[tui]\na = 1',
}
ALLOWED = '{\n  "permissions": {\n    "allow": ["Read"],\n    "deny": []\n  }\n}\n'


SOME: list[tuple[str, str]] = sampled([*FILES], 5, lambda file: file[0], lambda file: file[1])


def of_clients(cli: Cli) -> dict[str, bytes]:
    """Return all files but those in which this program keeps its trust."""
    return {path: text for path, text in everything(cli.home).items() if "trust." not in path}


@pytest.mark.parametrize(("client", "scope"), SOME)
def test_the_files_of_each_client_are_again_as_they_were(
    cli: Cli, home: Path, client: str, scope: str
) -> None:
    kept, words = cli.home / FILES[client, scope], (client, "--scope", scope)
    written(cli, *words)
    entry = servers(kept)["subagents"]
    assert entry["command"] == COMMAND and entry["args"][:3] == SERVE
    before = everything(cli.home)
    again = cli("init", *words)
    assert (again.returncode, again.stdout) == (0, "") and "already: nothing to do." in again.stderr
    assert everything(cli.home) == before
    written(cli, *words, "--remove")
    assert everything(cli.home).keys().isdisjoint({str(kept), str(cli.home / ".claude/settings.local.json")})
    assert not [d for d in cli.home.glob(".*") if d.is_dir() and not any(d.iterdir())]
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(THEIRS[kept.suffix], encoding="utf-8")
    settings = {"project": cli.home / ".claude/settings.local.json", "user": home / ".claude/settings.json"}
    settings[scope].parent.mkdir(exist_ok=True)
    settings[scope].write_text(ALLOWED, encoding="utf-8")
    before = of_clients(cli)
    written(cli, *words)
    assert of_clients(cli) != before
    written(cli, *words, "--remove")
    assert of_clients(cli) == before
    again = cli("init", *words, "--remove", "--yes")
    assert again.returncode == 0 and "does not have this server: nothing to do." in again.stderr


def test_what_was_changed_since_is_kept(cli: Cli, home: Path) -> None:
    written(cli, "claude")
    config, settings = cli.home / ".mcp.json", cli.home / ".claude" / "settings.local.json"
    data = json.loads(config.read_text(encoding="utf-8"))
    data["mcpServers"]["subagents"]["env"] = {"A": "b"}
    data["mcpServers"]["later"] = {"command": "x"}
    config.write_text(json.dumps(data), encoding="utf-8")
    allowed = json.loads(settings.read_text(encoding="utf-8"))
    allowed["permissions"]["allow"].append("Edit")
    settings.write_text(json.dumps(allowed), encoding="utf-8")
    written(cli, "claude", "--remove")
    assert servers(config) == {"later": {"command": "x"}}
    assert json.loads(settings.read_text(encoding="utf-8")) == {"permissions": {"allow": ["Edit"]}}


def test_without_a_yes_nothing_is_removed_and_a_token_is_not_shown(cli: Cli, home: Path) -> None:
    written(cli, "codex", "--http")
    before = everything(cli.home)
    done = cli("init", "codex", "--remove")
    assert done.returncode == 5 and done.stderr == (
        "subagent: nothing was written: add --yes to write this without being asked.\n"
    )
    assert '-http_headers = { "Authorization" = "Bearer TOKEN" }' in done.stdout
    assert everything(cli.home) == before
    assert cli.json("init", "codex", "--remove", "--yes")["state"] == "removed"
    assert cli.json("init", "codex", "--remove")["state"] == "absent"


def test_another_server_of_this_name_is_removed_only_by_force(cli: Cli, home: Path) -> None:
    config = cli.home / ".mcp.json"
    config.write_text('{"mcpServers": {"subagents": {"command": "other"}}}', encoding="utf-8")
    done = cli("init", "claude", "--remove", "--yes")
    assert done.returncode == 2 and "add --force to take it out." in done.stderr and config.exists()
    written(cli, "claude", "--remove", "--force")
    assert not config.exists()


def test_a_file_of_another_scope_is_named_and_left(cli: Cli, home: Path) -> None:
    written(cli, "claude", "--scope", "user")
    done = cli("init", "claude", "--remove", "--yes")
    assert done.returncode == 0 and "--scope user." in done.stderr
    assert (home / ".claude.json").exists()


def test_a_link_keeps_its_file(cli: Cli, home: Path) -> None:
    real, config = cli.home / "codex.toml", home / ".codex" / "config.toml"
    real.touch()
    config.parent.mkdir()
    config.symlink_to(real)
    written(cli, "codex")
    assert config.is_symlink() and "subagents" in servers(real)
    written(cli, "codex", "--remove")
    assert config.is_symlink() and real.read_bytes() == b""
