"""Claude Code as a parent."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.clients import messages_api
from tests.clients.driver import PATIENCE_SECONDS, ParentClient
from tests.clients.parent_model import ParentModel

_PREFIX = "mcp__subagents__"
_QUIET = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_TELEMETRY": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_ERROR_REPORTING": "1",
}


class ClaudeCode(ParentClient):
    """It asks the same API as the runs do, and it hands its whole environment to the server."""

    name = "claude"

    def configure(self) -> None:
        self.init()

    def command(self) -> list[str]:
        return [*self.installed.claude, "-p", "go", "--output-format", "stream-json", "--verbose"]

    @contextmanager
    def playing(self, model: ParentModel) -> Iterator[Mapping[str, str]]:
        self.scene.parent = lambda body: messages_api.turn(
            model.next(messages_api.heard(body, _PREFIX)), _PREFIX
        )
        patience = {"MCP_TOOL_TIMEOUT": f"{PATIENCE_SECONDS * 1000}"} if self.impatient else {}
        yield {**_QUIET, **patience}

    def said(self, printed: list[dict[str, Any]]) -> str:
        end = next(event for event in printed if event.get("type") == "result")
        return str(end["result"])

    def tools(self, printed: list[dict[str, Any]], model: ParentModel) -> list[str]:
        """The tools that it reports at its start; its model sees a part of them."""
        begin = next(event for event in printed if event.get("subtype") == "init")
        return [name.removeprefix(_PREFIX) for name in begin["tools"] if name.startswith(_PREFIX)]
