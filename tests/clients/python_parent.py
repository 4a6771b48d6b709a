"""A parent in Python's SDK: it makes the calls that it reads, one a line, and prints each answer on a line.

`python -m tests.clients.python_parent URL TOKEN ERA`
"""

import asyncio
import json
import sys

import httpx2
import mcp_types as types
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

READ_SECONDS = 60.0


async def talk(url: str, token: str, era: str) -> None:
    """Connect, and make calls until the input ends."""
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=READ_SECONDS) as http,
        Client(
            streamable_http_client(url, http_client=http),
            mode="legacy" if era == "legacy" else "auto",
            client_info=types.Implementation(name="python", version="1"),
        ) as client,
    ):
        while line := await asyncio.to_thread(sys.stdin.readline):
            call = json.loads(line)
            result = await client.call_tool(call["name"], call["arguments"])
            if result.is_error:
                sys.exit(f"{call['name']} was refused: {result.content}")
            print(json.dumps(result.structured_content), flush=True)


if __name__ == "__main__":
    asyncio.run(talk(*sys.argv[1:]))
