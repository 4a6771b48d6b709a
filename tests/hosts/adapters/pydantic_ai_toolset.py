"""Pydantic AI."""

from contextlib import asynccontextmanager

from fastmcp.client.transports import StdioTransport
from pydantic_ai.mcp import MCPToolset


@asynccontextmanager
async def connected(command, args, env, timeout):
    async with MCPToolset(StdioTransport(command, args, env=env), init_timeout=60) as toolset:
        yield [tool.name for tool in await toolset.list_tools()], toolset.direct_call_tool
