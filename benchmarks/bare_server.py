"""The baseline: a server of the same SDK with one tool that does nothing."""

from typing import Any

from mcp.server import MCPServer

server = MCPServer("bare")


@server.tool()
def nothing() -> dict[str, Any]:
    """Return an empty answer."""
    return {}


if __name__ == "__main__":
    server.run("stdio")
