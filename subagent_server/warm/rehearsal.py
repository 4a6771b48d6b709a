"""Runs that the warm process does by itself before it forks any for others.

All that a run comes through is loaded and cached by them: how a run is started, a conversation with a
question in it, the files, the end. The last one has processes as every run, to see what these use. They work
in a directory of their own, with a model that is none.
"""

import gc
import os
import select
import signal
import socket
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
from subagent_server.domain.states import Status
from subagent_server.host import processes
from subagent_server.host.hot_pages import HotPages, HotRun
from subagent_server.host.stderr import flush, log_exception
from subagent_server.launch.asking import ANSWER_SECONDS
from subagent_server.launch.launcher import Launcher, LaunchPackage
from subagent_server.launch.local import LocalLauncher
from subagent_server.launch.warm import WarmConnection, WarmStart
from subagent_server.service.access import USER
from subagent_server.service.context import open_service
from subagent_server.service.shim_record import read_shim
from subagent_server.service.start import StartOrder, start_agent
from subagent_server.settings import read_settings
from subagent_server.simulator.stream import encode, events_of
from subagent_server.store.paths import RunPaths
from subagent_server.worker.__main__ import work
from subagent_server.worker.run_context import WorkerRun

_AGENT = "rehearsal"
_PATIENCE_SECONDS = 5.0
_LOOK_SECONDS = 20
_QUESTION = {"question": "Is anybody there?"}
_TURNS: tuple[tuple[dict[str, Any], str], ...] = (
    ({"type": "tool_use", "id": "toolu_1", "name": "ask_parent", "input": _QUESTION}, "tool_use"),
    ({"type": "text", "text": "No."}, "end_turn"),
)


def rehearse(times: int, place: Path) -> None:
    """Do so many runs in a directory of `place`, in this thread, which has to be the main one.

    Raises:
        OSError, SubagentError: there is no room for it, or no loopback.
    """
    with tempfile.TemporaryDirectory(dir=place) as name, _Model() as model, model.answering():
        for _ in range(times):
            kept = _Kept()
            own = WorkerRun(_started(Path(name), model, kept).directory, [])
            with redirect_stderr(sys.stderr):  # a worker masks what it prints: not this process
                _work(own, kept)
            if own.meta().status is not Status.COMPLETED:
                raise OSError("the run has not come to its end")
    del own, kept
    gc.collect()  # what a run leaves in circles holds its directory open


def pages_of_a_run(connection: socket.socket, place: Path) -> HotRun:
    """Return what keeper and worker use of a run that comes to a second call of its model.

    `connection` leads to a fork of this process that waits for an order. Another one starts the run and looks
    at both, so that this one is afterwards what it was. Where it fails nothing is known of them.
    """
    out, into = os.pipe()
    if os.fork() == 0:
        signal.alarm(_LOOK_SECONDS)
        try:
            os.write(into, _look_at_a_run(connection, place).to_bytes())
        except BaseException:  # noqa: BLE001 - the outermost frame of a process
            log_exception()
        finally:
            flush()
            os._exit(0)
    os.close(into)
    with os.fdopen(out, "rb") as answer:
        return HotRun.from_bytes(answer.read())


def _look_at_a_run(connection: socket.socket, place: Path) -> HotRun:
    """Start a run with processes, let it come to its last call, look at them, and end them."""
    os.environ.clear()  # a test may want runs to die, and does not mean this one
    with tempfile.TemporaryDirectory(dir=place) as name, _Model() as model:
        run = _started(Path(name), model, LocalLauncher(_OneFork(connection)))
        try:
            model.wait_for_the_last_turn()
            keeper, worker = _keeper_and_worker(run)
            with suppress(PermissionError):  # they are not dumpable: only root may look at their memory
                return HotRun(HotPages.of(keeper), HotPages.of(worker))
            return HotRun()
        finally:
            for pid in _keeper_and_worker(run):
                _end(pid)


def _keeper_and_worker(run: RunPaths) -> list[int]:
    """Return both, as long as they live."""
    facts = read_shim(run)
    found = [processes.Identity.from_json(facts.get(who)) for who in ("shim", "worker")]
    return [identity.pid for identity in found if identity is not None and processes.is_alive(identity)]


def _end(pid: int) -> None:
    """End a process and wait until it is gone."""
    with suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        select.select([handle], [], [])


def _started(home: Path, model: "_Model", launcher: Launcher) -> RunPaths:
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


def _work(own: WorkerRun, kept: "_Kept") -> None:
    """Do the work of a run here that has no process."""
    assert kept.package is not None  # where a run is not started, there is none to work on
    package = kept.package.to_json()
    try:
        work(own, package, package["environment"])
    finally:
        os.chdir("/")


class _OneFork(WarmStart):
    """A warm process that has one fork to give."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(None, 0.0, may_spawn=False)
        connection.settimeout(ANSWER_SECONDS)
        self._connection = connection

    def connect(self) -> WarmConnection:
        """Return the way to it. Where it could not be had, the plain start would be no use."""
        if self._connection.fileno() < 0:
            raise OSError("there is one fork, and it could not be had")
        return WarmConnection(self, "", self._connection)

    def is_right(self, key: str) -> bool:
        """It is a fork of this very process."""
        return True


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

    def wait_for_the_last_turn(self) -> None:
        """Answer here until the last turn is asked for. Raises OSError: it is not."""
        self.timeout = _PATIENCE_SECONDS
        for _ in _TURNS[:-1]:
            self.handle_request()
        if not select.select([self.socket], [], [], _PATIENCE_SECONDS)[0]:
            raise OSError("the run has not come to its last turn")

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
