"""`subagent init --http`: a token for each client, which is shown nowhere."""

import json
import stat
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import Cli
from tests.cli.init_clients import FILES, written

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
    tokens = Path(cli.environment["XDG_STATE_HOME"]) / "subagent" / "http-tokens"
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
        (("claude-desktop", "--scope", "project"), "leave --scope out."),
        (("vscode",), "paste what `subagent init cursor --print` shows."),
        (("claude-desktop", "--http"), "reads no server over HTTP"),
        (("claude", "--http", "--scope", "project"), "A token does not belong in a file of the project"),
        (("claude", "--http", "--remove"), "--remove takes out what is there"),
        (("claude", "--http", "127.0.0.1:8101"), "is no URL"),
        (("claude", "--http", "http://[::1"), "is no URL"),
        (("claude", "--http", "http://a b/mcp"), "is no URL"),
    ],
)
def test_what_cannot_be_registered_is_refused(
    cli: Cli, home: Path, words: tuple[str, ...], sentence: str
) -> None:
    cli.leaves_with(2, sentence, "init", *words, "--yes")
    assert not Path(cli.environment["XDG_STATE_HOME"], "subagent", "http-tokens").exists()
