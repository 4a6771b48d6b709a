"""A run that the warm process does by itself before it forks any.

All that a run comes through is loaded and cached by it: how a run is started, a conversation with a question
in it, the files, the end. It works in a directory of its own, with a model that is none.
"""

import json
import os
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import cycle
from pathlib import Path
from typing import Any

from subagent_server.domain.definitions import AgentDefinition, Limits
from subagent_server.launch.launcher import LaunchPackage
from subagent_server.service.access import USER
from subagent_server.service.context import open_service
from subagent_server.service.own_run import OwnRun
from subagent_server.service.start import StartOrder, start_agent
from subagent_server.settings import read_settings
from subagent_server.store.paths import RunPaths
from subagent_server.worker.__main__ import work

_AGENT = "rehearsal"
_ASKS = {"type": "tool_use", "id": "toolu_1", "name": "ask_parent", "input": {}}
_SAYS = {"type": "text", "text": ""}
_TURNS: tuple[tuple[dict[str, Any], dict[str, Any], str], ...] = (
    (_ASKS, {"type": "input_json_delta", "partial_json": '{"question": "Is anybody there?"}'}, "tool_use"),
    (_SAYS, {"type": "text_delta", "text": "No."}, "end_turn"),
)


def rehearse(times: int) -> None:
    """Do so many runs, in this thread, which has to be the main one.

    Raises:
        OSError, SubagentError: there is no room for it, or no loopback.
    """
    with tempfile.TemporaryDirectory() as name, _model() as address:
        environment = {"ANTHROPIC_BASE_URL": address, "ANTHROPIC_API_KEY": "none"}
        for _ in range(times):
            _run(Path(name), environment)


def _run(home: Path, environment: Mapping[str, str]) -> None:
    kept = _Kept()
    settings = read_settings(environment=environment, cwd=home)
    service = open_service(settings, kept)
    agent = AgentDefinition(name=_AGENT, model="sonnet", tools=[], limits=Limits(ask_timeout_seconds=0.001))
    meta = start_agent(service, agent, StartOrder(_AGENT, "Is anybody there?"), USER)
    if kept.package is None:
        return
    package = kept.package.to_json()
    own = OwnRun(service.store.paths.run(meta.run_id).directory, [])
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

    def reserve(self, run: RunPaths) -> "_Kept":
        """Hold nothing."""
        return self

    def start(self, package: LaunchPackage) -> None:
        """Keep the package."""
        self.package = package

    def give_up(self) -> None:
        """Hold nothing."""


@contextmanager
def _model() -> Iterator[str]:
    """Yield the address of a model that says the same turns again and again."""
    with HTTPServer(("127.0.0.1", 0), partial(_Answering, cycle(_TURNS))) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.01], name="model")
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


class _Answering(BaseHTTPRequestHandler):
    """Answers each request with the next turn, streamed as the Messages API does."""

    def __init__(self, turns: Iterator[tuple[Any, Any, str]], *connection: Any) -> None:
        self._turns = turns
        super().__init__(*connection)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        body = "".join(map(_event, _events(*next(self._turns)))).encode("ascii")
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Nobody wants to know."""


def _event(event: dict[str, Any]) -> str:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"


def _events(block: dict[str, Any], delta: dict[str, Any], reason: str) -> Iterator[dict[str, Any]]:
    usage = {"input_tokens": 1, "output_tokens": 1}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "none", "content": []}
    yield {"type": "message_start", "message": {**message, "stop_reason": None, "usage": usage}}
    yield {"type": "content_block_start", "index": 0, "content_block": block}
    yield {"type": "content_block_delta", "index": 0, "delta": delta}
    yield {"type": "content_block_stop", "index": 0}
    yield {
        "type": "message_delta",
        "delta": {"stop_reason": reason, "stop_sequence": None},
        "usage": {"output_tokens": 1},
    }
    yield {"type": "message_stop"}
