"""Haystack."""

import asyncio
from contextlib import asynccontextmanager

from haystack_integrations.tools.mcp import MCPToolset, StdioServerInfo


@asynccontextmanager
async def connected(command, args, env, timeout):
    more = {} if timeout is None else {"invocation_timeout": timeout}
    toolset = MCPToolset(StdioServerInfo(command=command, args=args, env=env), **more)
    if hasattr(toolset, "warm_up"):
        toolset.warm_up()
    tools = {tool.name: tool for tool in toolset}
    try:
        yield list(tools), lambda tool, given: asyncio.to_thread(tools[tool].invoke, **given)
    finally:
        toolset.close()
