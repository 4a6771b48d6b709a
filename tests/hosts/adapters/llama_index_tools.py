"""LlamaIndex: a server for each call."""

from contextlib import asynccontextmanager

from llama_index.tools.mcp import BasicMCPClient


@asynccontextmanager
async def connected(command, args, env, timeout):
    more = {} if timeout is None else {"timeout": timeout}
    client = BasicMCPClient(command, args=args, env=env, **more)
    yield [tool.name for tool in (await client.list_tools()).tools], client.call_tool
