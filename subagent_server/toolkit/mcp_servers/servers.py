"""All MCP servers of a run: connected side by side, left side by side."""

import asyncio
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from subagent_server.domain.definitions import ServerDefinition
from subagent_server.domain.errors import RunRefused
from subagent_server.toolkit.mcp_servers.connection import ServerConnection, ServerContext
from subagent_server.toolkit.mcp_servers.offer import ToolChoice, ToolListing, make_offer
from subagent_server.toolkit.mcp_servers.reasons import NoPlace, ServerTrouble
from subagent_server.toolkit.mcp_servers.results import Attachments
from subagent_server.toolkit.mcp_servers.tool import McpTool


@dataclass
class Servers:
    """Servers that are connected."""

    connections: list[ServerConnection] = field(default_factory=list)

    def tools(
        self, wanted: ToolChoice, own: Collection[str], attachments: Attachments
    ) -> tuple[list[McpTool], list[str]]:
        """Return the tools that the run may use, with warnings for its author; `own` are its other tools.

        Raises:
            RunRefused: `config`; a name stands for two tools.
        """
        listings = [ToolListing(each.name, each.definition, each.tools) for each in self.connections]
        offer = make_offer(listings, wanted, own)
        by_name = {each.name: each for each in self.connections}
        warnings = [warning for each in self.connections for warning in each.warnings]
        tools = [McpTool(each, by_name[each.server], attachments) for each in offer.tools]
        return tools, [*warnings, *offer.warnings]

    async def aclose(self, *, hurry: bool = False) -> None:
        """Leave all of them at once."""
        await asyncio.gather(*(each.aclose(hurry=hurry) for each in self.connections))


async def connect(definitions: Mapping[str, ServerDefinition], around: ServerContext, agent: str) -> Servers:
    """Connect to all servers of an agent at once and list their tools, each within its own `timeout`.

    Raises:
        RunRefused: `config`; at least one did not connect, and the sentence says which and what it said. The
            others have been left.
    """
    servers = Servers(
        [ServerConnection(name, definition, around) for name, definition in definitions.items()]
    )
    opening = {asyncio.create_task(each.open()): each.name for each in servers.connections}
    try:
        if opening:
            await asyncio.wait(opening, return_when=asyncio.FIRST_EXCEPTION)
        failed = {name: task for task, name in opening.items() if task.done() and task.exception()}
        if failed:
            raise _refusal(failed, agent)
    except BaseException:
        for task in opening:
            task.cancel()
        await asyncio.gather(*opening, return_exceptions=True)
        await servers.aclose(hurry=True)
        raise
    return servers


def _refusal(failed: Mapping[str, "asyncio.Task[None]"], agent: str) -> RunRefused:
    reasons: list[str] = []
    for name, task in failed.items():
        error = task.exception()
        if not isinstance(error, ServerTrouble):
            assert error is not None
            raise error
        reasons.append(f"The MCP server {name} {error.what}.")
    attempt = shlex.join(["subagent", "mcp", "info", next(iter(failed)), "--agent", agent])
    passes = all(isinstance(task.exception(), NoPlace) for task in failed.values())
    return RunRefused(
        "storage" if passes else "config",
        " ".join(reasons),
        f"Try it with `{attempt}`, or mend it in mcpServers.",
    )
