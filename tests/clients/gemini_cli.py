"""Gemini CLI as a parent."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.clients.driver import PATIENCE_SECONDS, ParentClient, edit_json, entry_of
from tests.clients.gemini_api import gemini_app
from tests.clients.loopback import serving
from tests.clients.parent_model import ParentModel

SETTINGS = {
    "security": {"auth": {"selectedType": "gemini-api-key"}},
    "privacy": {"usageStatisticsEnabled": False},
    "telemetry": {"enabled": False},
    "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
}


class GeminiCli(ParentClient):
    """It keeps variables that look like secrets from the server unless its configuration names them."""

    name = "gemini"

    def configure(self) -> None:
        config = self.home / ".gemini" / "settings.json"
        edit_json(config, **SETTINGS)
        self.init()
        if self.impatient:
            # it waits so long for the server to begin, too, which takes seconds beside other work
            entry = {**entry_of(config), "timeout": 3 * PATIENCE_SECONDS * 1000}
            edit_json(config, mcpServers={"subagents": entry})

    def command(self) -> list[str]:
        words = ["-m", "gemini-2.5-flash", "-p", "go", "--output-format", "stream-json"]
        return [*self.installed.gemini, *words]

    @contextmanager
    def playing(self, model: ParentModel) -> Iterator[Mapping[str, str]]:
        with serving(gemini_app(model, "mcp_subagents_")) as url:
            yield {
                "GOOGLE_GEMINI_BASE_URL": url,
                "GEMINI_API_KEY": "scripted",
                "GEMINI_CLI_TRUST_WORKSPACE": "true",
            }

    def said(self, printed: list[dict[str, Any]]) -> str:
        return "".join(event["content"] for event in printed if event.get("role") == "assistant")
