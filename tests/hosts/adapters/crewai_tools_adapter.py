"""CrewAI."""

import asyncio
from contextlib import asynccontextmanager

from crewai_tools import MCPServerAdapter
from mcp import StdioServerParameters


@asynccontextmanager
async def connected(command, args, env, timeout):
    with MCPServerAdapter(StdioServerParameters(command=command, args=args, env=env)) as found:
        tools = {tool.name: tool for tool in found}
        yield list(tools), lambda tool, given: asyncio.to_thread(tools[tool].run, **given)
