"""Codex as a parent."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.clients.driver import PATIENCE_SECONDS, ParentClient
from tests.clients.loopback import serving
from tests.clients.parent_model import ParentModel
from tests.clients.responses_api import responses_app

SETTINGS = """\
# What a person has written, to stay as it is.
model = "scripted"
model_provider = "loopback"
check_for_update_on_startup = false

[model_providers.loopback]
name = "loopback"
base_url = "http://127.0.0.1:1/v1"  # the tests say where
wire_api = "responses"
env_key = "LOOPBACK_KEY"

[analytics]
enabled = false

[features]
apps = false
plugins = false
remote_plugin = false
"""


class Codex(ParentClient):
    """It hands only the variables to the server that its configuration names."""

    name = "codex"

    def configure(self) -> None:
        config = self.home / ".codex" / "config.toml"
        config.parent.mkdir(exist_ok=True)
        if not config.exists():
            config.write_text(SETTINGS, encoding="utf-8")
        self.init()
        assert config.read_text(encoding="utf-8").startswith(SETTINGS)

    def command(self) -> list[str]:
        settings = [
            f'model_providers.loopback.base_url="{self._url}/v1"',
            *([f"mcp_servers.subagents.tool_timeout_sec={PATIENCE_SECONDS}"] if self.impatient else []),
        ]
        overrides = [word for setting in settings for word in ("-c", setting)]
        return [*self.installed.codex, "exec", "--skip-git-repo-check", "--json", *overrides, "go"]

    @contextmanager
    def playing(self, model: ParentModel) -> Iterator[Mapping[str, str]]:
        with serving(responses_app(model, "mcp__subagents")) as self._url:
            yield {"LOOPBACK_KEY": "scripted"}

    def said(self, printed: list[dict[str, Any]]) -> str:
        items = [event["item"] for event in printed if event["type"] == "item.completed"]
        return [str(item["text"]) for item in items if item["type"] == "agent_message"][-1]
