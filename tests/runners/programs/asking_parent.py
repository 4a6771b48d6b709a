"""How a played program asks its parent: by the MCP server of its run. It needs the standard library alone."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence


def answer_of_parent(
    command: str, args: Sequence[str], question: str, environment: Mapping[str, str] | None = None
) -> str:
    """Return the answer to a question, however long it takes."""
    client = {"name": "played", "version": "1"}
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client}
    ask = {"name": "ask_parent", "arguments": {"question": question}}
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
            {"id": 2, "method": "tools/call", "params": ask},
        ):
            server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
            server.stdin.flush()
        answered = next(told for told in map(json.loads, server.stdout) if told.get("id") == 2)
        server.stdin.close()
    return str(answered["result"]["structuredContent"]["answer"])
