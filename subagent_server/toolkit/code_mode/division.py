"""Which MCP tools of an agent in code mode become functions, and which stay ordinary tools. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from subagent_server.domain.errors import shorten
from subagent_server.toolkit.code_mode.catalogue import Catalogue, catalogue_of
from subagent_server.toolkit.code_mode.stubs import ServerTool
from subagent_server.toolkit.mcp_servers.tool import McpTool


@dataclass(frozen=True)
class DividedTools:
    """The MCP tools of an agent in code mode. `functions` stand in the catalogue, in its order."""

    catalogue: Catalogue
    functions: Sequence[McpTool]
    ordinary: Sequence[McpTool]
    warnings: Sequence[str]


def divided(tools: Sequence[McpTool], excluded: Sequence[str]) -> DividedTools:
    """Return the tools with those ordinary that `excludedTools` of the agent names.

    Raises:
        RunRefused: `config`; names clash.
    """
    ordinary = [tool for tool in tools if any(map(tool.answers_to, excluded))]
    functions = [tool for tool in tools if tool not in ordinary]
    warnings = [
        f"codeMode.excludedTools names {shorten(name)}, which no server offers."
        for name in excluded
        if not any(tool.answers_to(name) for tool in tools)
    ]
    return DividedTools(catalogue_of(list(map(_server_tool, functions))), functions, ordinary, warnings)


def _server_tool(tool: McpTool) -> ServerTool:
    listed = tool.offered.tool
    return ServerTool(
        server=tool.offered.server,
        name=listed.name,
        description=listed.description or listed.title or "",
        input_schema=listed.input_schema,
        output_schema=listed.output_schema,
    )
