"""How a played program uses the MCP server of its run. It needs the standard library alone."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any


def answer_of_parent(
    command: str, args: Sequence[str], question: str, environment: Mapping[str, str] | None = None
) -> str:
    """Return the answer to a question, however long it takes."""
    asked = called(command, args, "ask_parent", {"question": question}, environment)
    return str(asked["answer"])


def called(
    command: str,
    args: Sequence[str],
    tool: str,
    arguments: dict[str, Any],
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the answer of a tool, however long it takes."""
    client = {"name": "played", "version": "1"}
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client}
    call = {"name": tool, "arguments": arguments}
    with subprocess.Popen(
        [command, *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
    ) as server:
        assert server.stdin is not None and server.stdout is not None
        for message in (
            {"id": 1, "method": "initialize", "params": hello},
            {"method": "notifications/initialized"},
            {"id": 2, "method": "tools/call", "params": call},
        ):
            server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
            server.stdin.flush()
        answered = next(told for told in map(json.loads, server.stdout) if told.get("id") == 2)
        server.stdin.close()
    content: dict[str, Any] = answered["result"]["structuredContent"]
    return content
