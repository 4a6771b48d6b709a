"""mcp-use for Python."""

from contextlib import asynccontextmanager

from mcp_use import MCPClient


@asynccontextmanager
async def connected(command, args, env, timeout):
    client = MCPClient.from_dict({"mcpServers": {"s": {"command": command, "args": args, "env": env}}})
    session = await client.create_session("s")
    try:
        yield [tool.name for tool in await session.list_tools()], session.call_tool
    finally:
        await client.close_all_sessions()
