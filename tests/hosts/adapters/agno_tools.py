"""Agno."""

from contextlib import asynccontextmanager

from agno.tools.mcp import MCPTools
from mcp import StdioServerParameters


@asynccontextmanager
async def connected(command, args, env, timeout):
    more = {} if timeout is None else {"timeout_seconds": timeout}
    server = StdioServerParameters(command=command, args=args, env=env)
    async with MCPTools(server_params=server, **more) as tools:
        functions = tools.get_async_functions() if hasattr(tools, "get_async_functions") else tools.functions
        yield list(functions), lambda tool, given: functions[tool].entrypoint(**given)
