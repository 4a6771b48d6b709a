"""The MCP SDK for Python, version 1."""

from contextlib import asynccontextmanager
from datetime import timedelta

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client


@asynccontextmanager
async def connected(command, args, env, timeout):
    bound = None if timeout is None else timedelta(seconds=timeout)
    async with (
        stdio_client(StdioServerParameters(command=command, args=args, env=env)) as (read, write),
        ClientSession(read, write) as session,
    ):
        await session.initialize()
        names = [tool.name for tool in (await session.list_tools()).tools]
        yield names, lambda tool, given: session.call_tool(tool, given, read_timeout_seconds=bound)
