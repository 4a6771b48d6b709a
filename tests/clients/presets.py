"""The programs that `runner` names alone (opencode, qwen, copilot, ...), each with a scripted model."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.clients import messages_api
from tests.clients.parent_model import Call, ParentModel, Plan
from tests.clients.programs import Program

_SHELLS: dict[str, tuple[str, dict[str, Any]]] = {
    "opencode": ("bash", {"description": "x"}),
    "qwen": ("run_shell_command", {"is_background": False, "description": "x"}),
    "copilot": ("bash", {"description": "x", "mode": "sync"}),
    "claude-acp": ("Bash", {"description": "x"}),
}
"""The tool by which the model of each uses a shell, and what a call has besides its command."""
_PREFIXES = {
    "opencode": "subagent_",
    "qwen": "mcp__subagent__",
    "copilot": "subagent-",
    "claude-acp": "mcp__subagent__",
}
"""What each puts before the names of the tools of the child's server."""
PRESETS = (*_SHELLS, "codex-acp")
_MODEL = "claude-sonnet-4-5"


class Preset(Program):
    """A program that an agent file names alone, by its `runner`: it is found on PATH."""

    def shell(self, command: str, *, outside: bool = False) -> Call:
        """Return a call of its shell."""
        if self.name == "codex-acp":
            return super().shell(command, outside=outside)
        tool, given = _SHELLS[self.name]
        return Call(tool, {"command": command, **given}, own=True)

    def in_a_box(self) -> dict[str, Any]:
        """Return the keys with which it works in a box."""
        home = self.world.home
        state = [home / name for name in (".config", ".qwen", ".codex")]  # they write beside their settings
        written = [str(path) for path in state if path.exists()]
        shown = [str(self._modules), str(home / "bin")]
        return {"sandbox": "bwrap", "sandboxRead": shown, "sandboxWrite": written}

    @contextmanager
    def playing(self, plan: Plan, agent: str = "worker", **keys: Any) -> Iterator[None]:
        """Write the agent, and let its model follow a plan."""
        folder = self.world.home / "bin"
        folder.mkdir(exist_ok=True)
        self.wrapper(folder / ("claude-agent-acp" if self.name == "claude-acp" else self.name))
        if str(folder) not in self.world.environment["PATH"]:
            self.world.environment["PATH"] = f"{folder}:{self.world.environment['PATH']}"
        model = ParentModel(plan)
        with self._asking(model) as environment:
            self.world.agent(agent, env=environment, runner=self.name, **keys)
            yield
        if self.name == "opencode":  # it looks for plug-ins of its own, also if it has none
            self._scene.fence.reached.clear()
        assert model.failure is None, model.failure

    @contextmanager
    def _asking(self, model: ParentModel) -> Iterator[dict[str, str]]:
        if self.name == "codex-acp":
            with self._codex_model(model) as environment:
                yield environment
            return
        prefix = _PREFIXES[self.name]
        self._scene.parent = lambda body: messages_api.turn(
            model.next(messages_api.heard(body, prefix)), prefix
        )
        environment = self.world.environment
        api = {name: environment[name] for name in ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY")}
        yield {**getattr(self, f"_{self.name.replace('-', '_')}")(api["ANTHROPIC_BASE_URL"]), **api}

    def _claude_acp(self, url: str) -> dict[str, str]:
        return {"ANTHROPIC_MODEL": _MODEL, "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}

    def _opencode(self, url: str) -> dict[str, str]:
        options = {"baseURL": f"{url}/v1", "apiKey": "scripted"}
        provider = {"npm": "@ai-sdk/anthropic", "options": options, "models": {_MODEL: {}}}
        self._write(
            ".config/opencode/opencode.json",
            provider={"scripted": provider},
            model=f"scripted/{_MODEL}",
            small_model=f"scripted/{_MODEL}",
            permission={"bash": "ask"},
            autoupdate=False,
            share="disabled",
        )
        return {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"}

    def _qwen(self, url: str) -> dict[str, str]:
        self._write(
            ".qwen/settings.json",
            security={"auth": {"selectedType": "anthropic"}},
            model={"name": _MODEL},
            privacy={"usageStatisticsEnabled": False},
            telemetry={"enabled": False},
            general={"disableAutoUpdate": True, "enableAutoUpdate": False},
        )
        return {"ANTHROPIC_MODEL": _MODEL}

    def _copilot(self, url: str) -> dict[str, str]:
        return {
            "COPILOT_PROVIDER_TYPE": "anthropic",
            "COPILOT_PROVIDER_BASE_URL": url,
            "COPILOT_PROVIDER_API_KEY": "scripted",
            "COPILOT_MODEL": _MODEL,
            "COPILOT_OFFLINE": "true",
            "COPILOT_AUTO_UPDATE": "false",
        }

    def _write(self, name: str, **settings: Any) -> None:
        file = self.world.home / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(settings), encoding="utf-8")
