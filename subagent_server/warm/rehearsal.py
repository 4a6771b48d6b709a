"""Rehearse runs in the zygote, before it forks the first one for a starter.

A run loads and caches on its way: the start, a conversation with a question in it, the files, the end. After
the rehearsals its forks find all this done. They work in a directory of their own, with a fake model on
loopback.
"""

import gc
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stderr, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import cycle
from pathlib import Path
from typing import Any

from subagent_server.domain.definitions import AgentDefinition, Limits
from subagent_server.domain.errors import SubagentError
from subagent_server.domain.states import Status
from subagent_server.launch.launcher import Launcher, LaunchPackage
from subagent_server.service.access import USER
from subagent_server.service.context import open_service
from subagent_server.service.start import StartOrder, start_agent
from subagent_server.settings import read_settings
from subagent_server.simulator.stream import encode, events_of
from subagent_server.store.paths import RunPaths
from subagent_server.worker.__main__ import work
from subagent_server.worker.run_context import WorkerRun

_AGENT = "rehearsal"
_PATIENCE_SECONDS = 5.0
_QUESTION = {"question": "Is anybody there?"}
_TURNS: tuple[tuple[dict[str, Any], str], ...] = (
    ({"type": "tool_use", "id": "toolu_1", "name": "ask_parent", "input": _QUESTION}, "tool_use"),
    ({"type": "text", "text": "No."}, "end_turn"),
)


def rehearse_if_possible(times: int, directory: Path) -> None:
    """Rehearse, as far as there are loopback and room for files; without, a little less is loaded."""
    with suppress(OSError, SubagentError):
        rehearse(times, directory)


def rehearse(times: int, directory: Path) -> None:
    """Do so many runs below `directory`, in this thread, which has to be the main one.

    Raises:
        OSError, SubagentError: there is no room for it, or no loopback.
    """
    with tempfile.TemporaryDirectory(dir=directory) as name, _FakeModel() as model, model.answering():
        for _ in range(times):
            kept = _KeptPackage()
            own = WorkerRun(_started(Path(name), model, kept).directory, [])
            with redirect_stderr(sys.stderr):  # a worker masks its output: not that of this process
                _work(own, kept)
            if own.meta().status is not Status.COMPLETED:
                raise OSError("the rehearsed run has not completed")
    del own, kept
    gc.collect()  # objects of a run that refer to each other hold its directory open


def _started(home: Path, model: "_FakeModel", launcher: Launcher) -> RunPaths:
    """Start a run as every starter does."""
    environment = {"ANTHROPIC_BASE_URL": model.address, "ANTHROPIC_API_KEY": "none"}
    settings = read_settings(runs=home / "runs", environment=environment, cwd=home)
    service = open_service(settings, launcher)
    limits = Limits(ask_timeout_seconds=0.001, timeout_seconds=_PATIENCE_SECONDS)
    agent = AgentDefinition(name=_AGENT, model="sonnet", tools=[], limits=limits)
    meta = start_agent(service, agent, StartOrder(_AGENT, "Is anybody there?"), USER)
    if meta.status.is_terminal:
        raise OSError("the run was not started")
    return service.store.paths.run(meta.run_id)


def _work(own: WorkerRun, kept: "_KeptPackage") -> None:
    """Do the work of a run in this process."""
    assert kept.package is not None  # a start that fails raises before
    package = kept.package.to_json()
    try:
        work(own, package, package["environment"])
    finally:
        os.chdir("/")


@dataclass
class _KeptPackage:
    """A launcher, and its reservations, that keeps the package and starts nothing."""

    package: LaunchPackage | None = None
    kind: str = "local"

    def warm_up(self) -> None:
        """There is nothing to prepare."""

    def reap(self) -> None:
        """There is nothing to collect."""

    def starting(self) -> AbstractContextManager["_KeptPackage"]:
        """Prepare nothing."""
        return nullcontext(self)

    def reserve(self, run: RunPaths) -> "_KeptPackage":
        """Hold nothing."""
        return self

    def start(self, package: LaunchPackage) -> None:
        """Keep the package."""
        self.package = package

    def give_up(self) -> None:
        """Hold nothing."""


class _FakeModel(HTTPServer):
    """A model that streams the same turns again and again, as the Messages API does."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _FakeAnswer)
        self._turns = cycle(_TURNS)

    @property
    def address(self) -> str:
        """Its base URL."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Answer, in a thread."""
        thread = threading.Thread(target=self.serve_forever, args=[0.01], name="model")
        thread.start()
        try:
            yield
        finally:
            self.shutdown()
            thread.join()

    def next_reply(self) -> bytes:
        """Return the body of the next answer."""
        return b"".join(map(encode, events_of(_message(*next(self._turns)), None)))


class _FakeAnswer(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        assert isinstance(self.server, _FakeModel)
        body = self.server.next_reply()
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing."""


def _message(block: dict[str, Any], reason: str) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "none",
        "content": [block],
        "stop_reason": reason,
        "stop_sequence": None,
        "stop_details": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }
