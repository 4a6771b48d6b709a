"""MCP servers for agents under test: scripted ones, and those that nobody here wrote."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from filelock import FileLock

from subagent_server.run.agent_definition import ServerDefinition
from tests.helpers.processes import REPOSITORY

_SCRIPTED = Path(__file__).with_name("scripted_server.py")
_REFERENCE = REPOSITORY / ".cache" / "servers"
_INSTALL_SECONDS = 300


def scripted(
    *tools: str | dict[str, Any], keys: dict[str, Any] | None = None, **script: Any
) -> dict[str, Any]:
    """Return the keys of a scripted server; a tool that is only named answers with its arguments.

    Its program lies elsewhere than the working directory of a run, so its box has to show it.
    """
    listed = [{"name": tool} if isinstance(tool, str) else tool for tool in tools]
    text = json.dumps({"tools": listed, **script})
    shown = {"sandboxRead": [str(_SCRIPTED.parent)]}
    return {"command": sys.executable, "args": ["-S", str(_SCRIPTED), text], **shown, **(keys or {})}


def definition(**keys: Any) -> ServerDefinition:
    """Return the definition of a server from its keys in an agent file."""
    return ServerDefinition.model_validate(keys)


def reference(name: str, *args: str) -> list[str]:
    """Return the command of a reference server from npm; they are installed where they are not."""
    _install()
    folder = _REFERENCE / "node_modules" / "@modelcontextprotocol" / f"server-{name}"
    return [shutil.which("node") or "node", str(folder / "dist" / "index.js"), *args]


def _install() -> None:
    with FileLock(f"{_REFERENCE}.lock", timeout=_INSTALL_SECONDS):
        if not (_REFERENCE / ".installed").exists():
            target = str((_REFERENCE / ".installed").relative_to(REPOSITORY))
            subprocess.run(["make", target], cwd=REPOSITORY, check=True, timeout=_INSTALL_SECONDS)
