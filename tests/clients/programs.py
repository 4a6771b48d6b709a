"""Claude Code, Codex and Gemini CLI as programs that carry out runs, each with a scripted model."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from subagent_server.run import processes
from tests.clients import messages_api
from tests.clients.codex import SETTINGS
from tests.clients.driver import BOUND, edit_json
from tests.clients.gemini_api import gemini_app
from tests.clients.gemini_cli import SETTINGS as GEMINI_SETTINGS
from tests.clients.installed import Installed
from tests.clients.loopback import serving
from tests.clients.parent_model import Call, Heard, ParentModel, Plan, Say
from tests.clients.responses_api import responses_app
from tests.clients.scene import Scene
from tests.helpers.files import write_program
from tests.helpers.wait import wait_for
from tests.helpers.world import World

PROGRAMS = ("claude", "codex", "gemini")
_SETTINGS = {"codex": "config.toml", "gemini": "settings.json"}
"""The file below its directory in the home directory that leads each program to its model."""
_GIVES = "StructuredOutput"
"""The tool by which a model of Claude Code gives a structured result."""
_STAYS = "import time; open('begun', 'w'); time.sleep(600)"


class Program:
    """A program that carries out the runs of an agent."""

    def __init__(self, scene: Scene, installed: Installed, name: str) -> None:
        self.world: World = scene.world
        self.name = name
        self._scene = scene
        self._modules = installed.modules
        self._words: list[str] = getattr(installed, name.replace("-", "_"))

    # -- what its model does

    def shell(self, command: str, *, outside: bool = False) -> Call:
        """Return a call of its shell; `outside` asks for more than it may by itself."""
        if self.name == "claude":  # it may run nothing that changes something, unless `tools` say so
            return Call("Bash", {"command": command, "description": "x", "timeout": 600_000}, own=True)
        if self.name == "gemini":
            return Call("run_shell_command", {"command": command}, own=True)
        more = {"sandbox_permissions": "require_escalated", "justification": "x"} if outside else {}
        return Call("exec_command", {"cmd": command, **more}, own=True)

    def stays(self) -> Call:
        """Return a call of its shell that asks for a permission, and does not end by itself."""
        return self.shell(f'{sys.executable} -c "{_STAYS}" {self.world.work}', outside=True)

    def gives(self, heard: Heard, output: dict[str, Any]) -> Call | Say:
        """Return what its model does next to end the run with a structured result."""
        if self.name == "claude" and _GIVES not in heard.conversation:
            return Call(_GIVES, output, own=True)
        return Say(json.dumps(output))

    # -- its processes

    def itself(self, run_id: str) -> processes.Identity:
        """Return the process that the worker has started."""
        return processes.descendants([self.world.worker(run_id).pid])[0]

    def servers(self, run_id: str) -> list[processes.Identity]:
        """Return the processes below it through which it reaches its parent: they run on this Python."""
        below = processes.descendants([self.itself(run_id).pid])
        return [each for each in below if _executable(each.pid) == Path(sys.executable).resolve()]

    def begun(self) -> bool:
        """Return True as soon as the command of `stays` is at work."""
        return wait_for((self.world.work / "begun").exists, BOUND, "the command")

    def command_lives(self) -> bool:
        """Whether the command of `stays` is at work."""
        return bool(processes.with_words(_STAYS.encode(), str(self.world.work).encode()))

    # -- its agent

    def in_a_box(self) -> dict[str, Any]:
        """Return the keys with which it works in a box, and may use its shell there."""
        home, shown = self.world.home, [self._modules, self.world.home / self.name]
        if self.name in _SETTINGS:
            shown.append(home / f".{self.name}" / _SETTINGS[self.name])
        # Codex has no list of tools, and asks for nothing in a box
        tools = {} if self.name == "codex" else {"tools": ["Bash"]}
        return {"sandbox": "bwrap", "sandboxRead": [*map(str, shown)], **tools}

    def wrapper(self, file: Path) -> Path:
        """Make a file a command that starts it."""
        write_program(file, "#!/bin/sh\nexec " + " ".join(self._words) + ' "$@"\n')
        return file

    @contextmanager
    def playing(self, plan: Plan, agent: str = "worker", **keys: Any) -> Iterator[None]:
        """Write the agent, and let its model follow a plan."""
        wrapper = self.wrapper(self.world.home / self.name)
        model = ParentModel(plan)
        with self._asking(model) as environment:
            words: dict[str, Any] = {"runner": self.name, "command": str(wrapper)}
            if self.name == "gemini":  # without a model it asks another one which to take
                words["model"] = "gemini-2.5-flash"
            self.world.agent(agent, env=environment, **words, **keys)
            yield
        assert model.failure is None, model.failure

    @contextmanager
    def _asking(self, model: ParentModel) -> Iterator[dict[str, str]]:
        """Let it ask a model; gives the environment that leads to it."""
        if self.name == "claude":  # the API that the built-in loop asks, too
            prefix = "mcp__subagent__"
            self._scene.parent = lambda body: messages_api.turn(
                model.next(messages_api.heard(body, prefix)), prefix
            )
            yield {}
            return
        if self.name == "gemini":
            with serving(gemini_app(model, "mcp_subagent_")) as url:
                yield self._gemini_asks(url)
            return
        with self._codex_model(model) as environment:
            yield environment

    @contextmanager
    def _codex_model(self, model: ParentModel) -> Iterator[dict[str, str]]:
        with serving(responses_app(model, "mcp__subagent")) as url:
            yield self._codex_asks(url)

    def _gemini_asks(self, url: str) -> dict[str, str]:
        edit_json(self.world.home / ".gemini" / _SETTINGS["gemini"], **GEMINI_SETTINGS)
        return {"GOOGLE_GEMINI_BASE_URL": url, "GEMINI_API_KEY": "scripted"}

    def _codex_asks(self, url: str) -> dict[str, str]:
        state = self.world.home / ".codex"
        state.mkdir(exist_ok=True)
        settings = SETTINGS.replace("http://127.0.0.1:1/v1", f"{url}/v1")
        (state / _SETTINGS["codex"]).write_text(settings, encoding="utf-8")
        return {"CODEX_HOME": str(state), "LOOPBACK_KEY": "scripted"}


def _executable(pid: int) -> Path | None:
    try:
        return Path(f"/proc/{pid}/exe").readlink()
    except OSError:  # it is gone
        return None
