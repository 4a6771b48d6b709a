"""Google's Agent Development Kit."""

from contextlib import asynccontextmanager
from unittest.mock import MagicMock

from google.adk.tools.mcp_tool.mcp_session_manager import StdioConnectionParams
from google.adk.tools.mcp_tool.mcp_toolset import McpToolset
from mcp import StdioServerParameters


@asynccontextmanager
async def connected(command, args, env, timeout):
    more = {} if timeout is None else {"timeout": timeout}
    server = StdioServerParameters(command=command, args=args, env=env)
    toolset = McpToolset(connection_params=StdioConnectionParams(server_params=server, **more))
    tools = {tool.name: tool for tool in await toolset.get_tools()}
    context = MagicMock()  # what an agent of the kit would give
    context.tool_confirmation = None
    try:
        yield list(tools), lambda tool, given: tools[tool].run_async(args=given, tool_context=context)
    finally:
        await toolset.close()
