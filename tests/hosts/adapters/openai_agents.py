"""The Agents SDK of OpenAI for Python."""

from contextlib import asynccontextmanager

from agents.mcp import MCPServerStdio


@asynccontextmanager
async def connected(command, args, env, timeout):
    more = {} if timeout is None else {"client_session_timeout_seconds": timeout}
    async with MCPServerStdio({"command": command, "args": args, "env": env}, **more) as server:
        yield [tool.name for tool in await server.list_tools()], server.call_tool
