"""The output of `subagent mcp`: servers, their tools and the results of calls as text."""

import json
import shlex
from typing import Any, Literal

from subagent_server.catalog.redact import redact
from subagent_server.cli.console.text import escape, escape_lines, one_line
from subagent_server.domain.definitions import AgentDefinition, ServerDefinition
from subagent_server.sandbox.server_places import ServerPlace

_PLACES = ("sandboxRead", "sandboxWrite")

Which = Literal["offered", "all", "filtered"]


def wire_place(place: ServerPlace | None) -> dict[str, str]:
    """Return where a server works as JSON data, nothing for one that is not started here."""
    return {} if place is None else {"works": place.works, "why": str(place)}


def listed_server(name: str, server: ServerDefinition, place: ServerPlace | None) -> str:
    """Return the lines of a server in `list-servers`; values that look like secrets are masked."""
    shown = wire_server(name, server)
    lines = [f"- {one_line(name)} (Type: {server.type}, Timeout: {server.timeout:g}s)"]
    if server.type == "stdio":
        lines.append(f"  Command: {one_line(shlex.join([shown['command'] or '', *shown['args']]))}")
    else:
        lines.append(f"  URL: {one_line(shown['url'] or '')}")
    if place is not None:
        lines.append(f"  Works: {one_line(str(place))}")
    for key, label in (("enabledTools", "Enabled tools"), ("disabledTools", "Disabled tools")):
        if shown.get(key):
            lines.append(f"  {label}: {one_line(', '.join(shown[key]))}")
    return "\n".join(lines)


def wire_server(name: str, server: ServerDefinition) -> dict[str, Any]:
    """Return a server as JSON data, masked, without keys that are not set."""
    masked = redact(AgentDefinition(name="x", mcp_servers={name: server}))["mcpServers"][name]
    kept = {
        key: value
        for key, value in masked.items()
        if value not in (None, {}, False) and not (key in _PLACES and not value)
    }
    if server.type != "stdio":
        kept.pop("args", None)
    return {"name": name, **kept}


def filter_lines(server: ServerDefinition, total: int, offered: int) -> str:
    """Return the mode of the filter, and how many tools pass it."""
    mode = "none"
    if server.enabled_tools is not None:
        mode = f"whitelist (enabledTools: {', '.join(server.enabled_tools)})"
    elif server.disabled_tools is not None:
        mode = f"blacklist (disabledTools: {', '.join(server.disabled_tools)})"
    return f"Filter: {escape(mode)}\nTools: {total} in all, {offered} offered, {total - offered} filtered out"


def listed_tool(tool: dict[str, Any], *, passes: bool) -> str:
    """Return the lines of a tool: name, description, schemas."""
    mark = "" if passes else " (filtered out)"
    lines = ["", f"{one_line(tool['name'])}{mark}"]
    if tool.get("description"):
        lines.append(escape_lines(tool["description"], "  "))
    lines += ["  Input schema:", _schema(tool.get("inputSchema"))]
    if tool.get("outputSchema"):
        lines += ["  Output schema:", _schema(tool["outputSchema"])]
    return "\n".join(lines)


def _schema(schema: Any) -> str:
    return escape_lines(json.dumps(schema, indent=2, ensure_ascii=False), "    ")
