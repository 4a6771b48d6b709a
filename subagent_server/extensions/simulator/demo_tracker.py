"""The MCP server of `subagent demo --code`: thirty made-up issues of a shop."""

from typing import TypedDict

from mcp.server import MCPServer

_AREAS = ("checkout", "search", "mail")
_TITLES = ("is slow", "fails for guests", "shows the wrong price", "forgets the address", "needs a test")
_COUNT = 30


class Issue(TypedDict):
    """One issue."""

    number: int
    title: str
    area: str
    days: int
    answered: bool


server = MCPServer("tracker")


@server.tool()
def list_issues() -> list[int]:
    """List the numbers of all open issues."""
    return list(range(1, _COUNT + 1))


@server.tool()
def get_issue(number: int) -> Issue:
    """Get one issue by its number."""
    if number not in list_issues():
        raise ValueError(f"there is no issue {number}")
    area, title = _AREAS[number % len(_AREAS)], _TITLES[number % len(_TITLES)]
    days = number * 7 % 31
    return Issue(number=number, title=f"{area} {title}", area=area, days=days, answered=number % 4 != 0)


if __name__ == "__main__":
    server.run()
