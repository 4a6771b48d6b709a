"""DSPy: its tools around a session of the SDK."""

from contextlib import asynccontextmanager

import dspy
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client


@asynccontextmanager
async def connected(command, args, env, timeout):
    async with (
        stdio_client(StdioServerParameters(command=command, args=args, env=env)) as (read, write),
        ClientSession(read, write) as session,
    ):
        await session.initialize()
        found = (await session.list_tools()).tools
        tools = {tool.name: dspy.Tool.from_mcp_tool(session, tool) for tool in found}
        yield list(tools), lambda tool, given: tools[tool].acall(**given)
