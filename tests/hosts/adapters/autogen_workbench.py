"""AutoGen."""

from contextlib import asynccontextmanager

from autogen_ext.tools.mcp import McpWorkbench, StdioServerParams


@asynccontextmanager
async def connected(command, args, env, timeout):
    more = {} if timeout is None else {"read_timeout_seconds": timeout}
    async with McpWorkbench(StdioServerParams(command=command, args=args, env=env, **more)) as bench:
        yield [tool["name"] for tool in await bench.list_tools()], bench.call_tool
