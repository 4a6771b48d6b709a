"""How a played program uses the MCP server of its run. It needs the standard library alone."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class Server:
    """The server of a run, in a process of its own: that of its configuration, unless words name another."""

    def __init__(self, words: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> None:
        if not words:
            config = json.loads(Path(os.environ["SUBAGENT_MCP_CONFIG"]).read_text(encoding="utf-8"))
            named = config["mcpServers"]["subagent"]
            words = [named["command"], *named["args"]]
        pipe, environment = subprocess.PIPE, {**os.environ, **(environment or {})}
        self.process = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True, env=environment)
        client = {"name": "played", "version": "1"}
        self._answer("initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo=client)
        self._send(method="notifications/initialized")

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Return the answer of a tool, however long it takes."""
        answer: dict[str, Any] = self._answer("tools/call", name=tool, arguments=arguments)[
            "structuredContent"
        ]
        return answer

    def ask(self, question: str) -> str:
        """Return the answer to a question, however long it takes."""
        return str(self.call("ask_parent", question=question)["answer"])

    def _answer(self, method: str, **params: Any) -> Any:
        self._send(id=1, method=method, params=params)
        assert self.process.stdout is not None
        return next(told for told in map(json.loads, self.process.stdout) if told.get("id") == 1)["result"]

    def _send(self, **message: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        self.process.stdin.flush()
