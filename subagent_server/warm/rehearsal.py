"""A run that the warm process does by itself before it forks any.

All that a run comes through is loaded and cached by it: how a run is started, a conversation with a question
in it, the files, the end. It works in a directory of its own, with a model that is none.
"""

import os
import select
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import cycle
from pathlib import Path
from typing import Any, NoReturn

from subagent_server.domain.definitions import AgentDefinition, Limits
from subagent_server.domain.states import Status
from subagent_server.host import hot_pages
from subagent_server.host.private_memory import Range
from subagent_server.launch.launcher import LaunchPackage
from subagent_server.service.access import USER
from subagent_server.service.context import open_service
from subagent_server.service.own_run import OwnRun
from subagent_server.service.start import StartOrder, start_agent
from subagent_server.settings import read_settings
from subagent_server.simulator.stream import encode, events_of
from subagent_server.store.paths import RunPaths
from subagent_server.worker.__main__ import work

_AGENT = "rehearsal"
_PATIENCE_SECONDS = 5.0
_QUESTION = {"question": "Is anybody there?"}
_TURNS: tuple[tuple[dict[str, Any], str], ...] = (
    ({"type": "tool_use", "id": "toolu_1", "name": "ask_parent", "input": _QUESTION}, "tool_use"),
    ({"type": "text", "text": "No."}, "end_turn"),
)


def rehearse(times: int) -> None:
    """Do so many runs, in this thread, which has to be the main one.

    Raises:
        OSError, SubagentError: there is no room for it, or no loopback.
    """
    with tempfile.TemporaryDirectory() as name, _Model() as model, model.answering():
        for _ in range(times):
            own, package = _start(Path(name), model)
            _work(own, package)
            if own.meta().status is not Status.COMPLETED:
                raise OSError("the run has not come to its end")


def pages_of_a_run() -> list[Range]:
    """Return the pages that a worker has written to when it goes on after its question. Raises as above."""
    with tempfile.TemporaryDirectory() as name, _Model() as model:
        own, package = _start(Path(name), model)

        def work_until_answered(done: Callable[[], NoReturn]) -> None:
            signal.signal(signal.SIGUSR1, lambda *_: done())
            model.answer_from_a_fork(before_the_last=lambda worker: os.kill(worker, signal.SIGUSR1))
            _work(own, package)

        return hot_pages.written_by(work_until_answered)


def _start(home: Path, model: "_Model") -> tuple[OwnRun, dict[str, Any]]:
    """Start a run as every starter does, but without a process; return it, and what its worker would get."""
    kept = _Kept()
    environment = {"ANTHROPIC_BASE_URL": model.address, "ANTHROPIC_API_KEY": "none"}
    service = open_service(read_settings(environment=environment, cwd=home), kept)
    limits = Limits(ask_timeout_seconds=0.001, timeout_seconds=_PATIENCE_SECONDS)
    agent = AgentDefinition(name=_AGENT, model="sonnet", tools=[], limits=limits)
    meta = start_agent(service, agent, StartOrder(_AGENT, "Is anybody there?"), USER)
    if kept.package is None:
        raise OSError("the run was not started")
    return OwnRun(service.store.paths.run(meta.run_id).directory, []), kept.package.to_json()


def _work(own: OwnRun, package: dict[str, Any]) -> None:
    try:
        work(own, package, package["environment"])
    finally:
        os.chdir("/")


@dataclass
class _Kept:
    """A launcher, and its reservations, by which nothing is started: the package is kept."""

    package: LaunchPackage | None = None
    kind: str = "local"

    def warm_up(self) -> None:
        """There is nothing to prepare."""

    def reap(self) -> None:
        """There is nothing to collect."""

    def starting(self) -> AbstractContextManager["_Kept"]:
        """Prepare nothing."""
        return nullcontext(self)

    def reserve(self, run: RunPaths) -> "_Kept":
        """Hold nothing."""
        return self

    def start(self, package: LaunchPackage) -> None:
        """Keep the package."""
        self.package = package

    def give_up(self) -> None:
        """Hold nothing."""


class _Model(HTTPServer):
    """A model that says the same turns again and again, streamed as the Messages API does."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self._turns = cycle(_TURNS)

    @property
    def address(self) -> str:
        """Where it is."""
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

    def answer_from_a_fork(self, before_the_last: Callable[[int], None]) -> None:
        """Answer in a fork, until the last turn: `before_the_last` is called there, with this process."""
        asker = os.getpid()
        if os.fork():
            return
        try:
            self.timeout = _PATIENCE_SECONDS
            for _ in _TURNS[:-1]:
                self.handle_request()
            waiting, _, _ = select.select([self.socket], [], [], _PATIENCE_SECONDS)
            if waiting:
                before_the_last(asker)
        finally:
            os._exit(0)

    def next_reply(self) -> bytes:
        """Return the body of the next answer."""
        return b"".join(map(encode, events_of(_message(*next(self._turns)), None)))


class _Answer(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        assert isinstance(self.server, _Model)
        body = self.server.next_reply()
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Nobody wants to know."""


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
