"""A real client with a scripted model: configured by `subagent init`, started, heard, killed."""

import json
import os
import signal
import subprocess
import sysconfig
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from subagent_server.cli.clients import SERVER
from subagent_server.run import processes
from tests.clients.installed import Installed
from tests.clients.parent_model import ParentModel, Plan
from tests.clients.scene import Scene
from tests.helpers.wait import wait_for

BOUND = 90.0
"""How long a client may take for a whole conversation, in seconds."""
PATIENCE_SECONDS = 6
"""The timeout of a call in a test with an impatient client."""
SCRIPT = Path(sysconfig.get_path("scripts")) / "subagent"
"""The command, as clients start it."""


@dataclass(frozen=True)
class Outcome:
    """How a conversation went: what the model said last, what its calls had answered, and all tools of the
    server. `in_sight` are those that the model was offered in its first turn."""

    said: str
    answers: list[str]
    tools: list[str]
    in_sight: list[str]


class Running:
    """A client that runs, in a process group of its own."""

    def __init__(self, process: "subprocess.Popen[bytes]", model: ParentModel, out: Path, err: Path) -> None:
        self.process = process
        self.model = model
        self._out, self._err = out, err

    def wait(self) -> str:
        """Return what a client has printed that has to end well."""
        code = self.process.wait(BOUND)
        if self.model.failure is not None:
            raise self.model.failure
        text = self._out.read_text(encoding="utf-8")
        assert code == 0, (
            f"it left with {code}: {text[-2000:]}\n{self._err.read_text(encoding='utf-8')[-2000:]}"
        )
        return text

    def kill(self) -> None:
        """End the client and all of its process group as nothing else can."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(BOUND)


class ParentClient(ABC):
    """One client. It works in the world's `work`, its home is the world's."""

    name: ClassVar[str]
    """What `subagent init` calls it."""

    def __init__(self, scene: Scene, installed: Installed) -> None:
        self.scene = scene
        self.installed = installed
        self.home, self.work = scene.world.home, scene.world.work
        self.impatient = False
        self.url: str | None = None
        """Where it comes over HTTP, or None if it starts a server of its own."""

    @abstractmethod
    def configure(self) -> None:
        """Write the settings that a person would have, then let `subagent init` add the server."""

    @abstractmethod
    def command(self) -> list[str]:
        """Return the words that start one conversation."""

    @abstractmethod
    def playing(self, model: ParentModel) -> AbstractContextManager[Mapping[str, str]]:
        """Let a model answer; gives the environment that leads to it."""

    @abstractmethod
    def said(self, printed: list[dict[str, Any]]) -> str:
        """Return the last words of the model, from the events that the client has printed."""

    def tools(self, printed: list[dict[str, Any]], model: ParentModel) -> list[str]:
        """Return the tools of the server that the client knows."""
        return model.heard.tools

    @contextmanager
    def start(self, plan: Plan) -> Iterator[Running]:
        """Begin a conversation. When the block is left, nothing of the client is."""
        self.configure()
        model = ParentModel(plan)
        out, err = self.home / "client.out", self.home / "client.err"
        with self.playing(model) as environment, out.open("wb") as output, err.open("wb") as errors:
            process = subprocess.Popen(
                self.command(),
                cwd=self.work,
                env={**self.scene.world.environment, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )
            running = Running(process, model, out, err)
            try:
                yield running
            finally:
                running.kill()
                self.server_is_gone()

    def talk(self, plan: Plan) -> Outcome:
        """Have a whole conversation."""
        with self.start(plan) as running:
            printed = running.wait()
        events = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
        model = running.model
        in_sight = model.first.tools if model.first else []
        return Outcome(self.said(events), model.heard.answers, self.tools(events, model), in_sight)

    def init(self, *words: str) -> None:
        """Register the server with the client by `subagent init`."""
        http = [] if self.url is None else ["--http", self.url]
        done = self.scene.world.cli("init", self.name, "--yes", *http, *words)
        assert done.returncode == 0, done.stderr

    def server_is_gone(self) -> None:
        """Return when no server of the client is left."""
        wait_for(lambda: not list(self._servers()), BOUND, f"the end of the server of {self.name}")

    def _servers(self) -> Iterator[processes.Identity]:
        for identity in processes.marked(f"SUBAGENT_RUNS={self.scene.world.runs}"):
            with suppress(OSError):
                words = Path(f"/proc/{identity.pid}/cmdline").read_bytes().split(b"\0")
                if bytes(SCRIPT) in words and b"serve" in words:
                    yield identity


def edit_json(path: Path, **settings: Any) -> None:
    """Set members of a JSON file at the top."""
    data = json.loads(path.read_bytes()) if path.exists() else {}
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({**data, **settings}, indent=2), encoding="utf-8")


def entry_of(path: Path) -> dict[str, Any]:
    """Return what `subagent init` has written to a JSON file."""
    entry: dict[str, Any] = json.loads(path.read_bytes())["mcpServers"][SERVER]
    return entry
