"""The clients that `subagent init` knows, their files, and what stands in them."""

import json
import sysconfig
import tomllib
from pathlib import Path
from typing import Any

from tests.cli.command import Cli, Completed

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
    ("claude-desktop", "user"): "home/.config/Claude/claude_desktop_config.json",
}


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
