"""Strands Agents."""

import asyncio
from contextlib import asynccontextmanager
from datetime import timedelta

from mcp import StdioServerParameters
from mcp.client.stdio import stdio_client
from strands.tools.mcp import MCPClient


@asynccontextmanager
async def connected(command, args, env, timeout):
    bound = None if timeout is None else timedelta(seconds=timeout)
    server = StdioServerParameters(command=command, args=args, env=env)

    def call(tool, given):
        return asyncio.to_thread(client.call_tool_sync, "1", tool, given, read_timeout_seconds=bound)

    with MCPClient(lambda: stdio_client(server)) as client:
        yield [tool.tool_name for tool in client.list_tools_sync()], call
