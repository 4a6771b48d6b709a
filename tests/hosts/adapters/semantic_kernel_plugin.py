"""Semantic Kernel."""

from contextlib import asynccontextmanager

from semantic_kernel.connectors.mcp import MCPStdioPlugin


@asynccontextmanager
async def connected(command, args, env, timeout):
    more = {} if timeout is None else {"request_timeout": timeout}
    async with MCPStdioPlugin(name="s", command=command, args=args, env=env, **more) as plugin:
        names = [tool.name for tool in (await plugin.session.list_tools()).tools]
        yield names, lambda tool, given: plugin.call_tool(tool, **given)
