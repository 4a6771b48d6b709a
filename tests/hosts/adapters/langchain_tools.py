"""LangChain's adapters: the tools of one session."""

from contextlib import asynccontextmanager

from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_mcp_adapters.tools import load_mcp_tools


@asynccontextmanager
async def connected(command, args, env, timeout):
    client = MultiServerMCPClient({"s": {"transport": "stdio", "command": command, "args": args, "env": env}})
    async with client.session("s") as session:
        tools = {tool.name: tool for tool in await load_mcp_tools(session)}
        yield list(tools), lambda tool, given: tools[tool].ainvoke(given)
