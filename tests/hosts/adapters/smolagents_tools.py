"""Smolagents."""

import asyncio
from contextlib import asynccontextmanager

from mcp import StdioServerParameters
from smolagents import MCPClient


@asynccontextmanager
async def connected(command, args, env, timeout):
    server = StdioServerParameters(command=command, args=args, env=env)
    more = {} if timeout is None else {"client_session_timeout_seconds": float(timeout)}
    client = MCPClient(server, adapter_kwargs=more, structured_output=False)
    try:
        tools = {tool.name: tool for tool in client.get_tools()}
        yield list(tools), lambda tool, given: asyncio.to_thread(tools[tool], **given)
    finally:
        client.disconnect()
