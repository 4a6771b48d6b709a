"""The MCP SDK for Python, version 2."""

from contextlib import asynccontextmanager

from mcp import Client, StdioServerParameters


@asynccontextmanager
async def connected(command, args, env, timeout):
    async with Client(StdioServerParameters(command=command, args=args, env=env)) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        yield names, lambda tool, given: client.call_tool(tool, given, read_timeout_seconds=timeout)
