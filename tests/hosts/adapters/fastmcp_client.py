"""The client of fastmcp."""

from contextlib import asynccontextmanager

from fastmcp import Client
from fastmcp.client.transports import StdioTransport


@asynccontextmanager
async def connected(command, args, env, timeout):
    async with Client(StdioTransport(command, args, env=env)) as client:
        names = [tool.name for tool in await client.list_tools()]
        yield names, lambda tool, given: client.call_tool(tool, given, timeout=timeout)
