"""The MCP servers of an agent in the words of Codex's configuration."""

from typing import Any

from subagent_server.domain.definitions import ServerDefinition
from subagent_server.domain.errors import RunRefused
from subagent_server.runners.programs.json_rpc import Message


def server_entry(name: str, server: ServerDefinition) -> Message:
    """Return an MCP server of the agent as Codex's configuration has it.

    Raises:
        RunRefused: Codex has none of the kind.
    """
    entry: dict[str, Any] = {
        "startup_timeout_sec": server.timeout,
        "tool_timeout_sec": server.call_timeout_seconds,
        # the agent file names the server, so its tools are among the agent's
        "default_tools_approval_mode": "approve",
    }
    if server.enabled_tools is not None:
        entry["enabled_tools"] = server.enabled_tools
    if server.disabled_tools is not None:
        entry["disabled_tools"] = server.disabled_tools
    if server.type == "sse":
        raise RunRefused("config", f"Codex has no MCP servers of type sse: {name}.", "Offer it as `http`.")
    if server.type == "stdio":
        return {**entry, "command": server.command, "args": server.args, "env": server.env}
    return {**entry, "url": server.url, "http_headers": server.headers}
