"""Clients of the MCP server that survive their server: over pipes and over HTTP, without a library."""

import json
import os
import select
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.helpers.forked import PROGRAM
from tests.helpers.http_server import HttpServer, free_port
from tests.helpers.raw_server import HELLO, READY, request

BOUND = 120.0
"""How long a server may take for one answer, in seconds, on a machine that is kept busy."""


class ServerGone(Exception):
    """The server has ended, whoever ended it."""


class ServerSilent(Exception):
    """The server lives and does not answer."""


class Client(ABC):
    """One server and its only client. Leaving the `with` block lets the server leave."""

    pid: int

    def call(self, tool: str, **arguments: Any) -> dict[str, Any] | None:
        """Call a tool and return its structured answer; None where it refused.

        Raises:
            ServerGone: it died before it answered.
            ServerSilent: it did not answer in time.
        """
        result = self._asked("tools/call", name=tool, arguments=arguments)
        answer: dict[str, Any] | None = None if result.get("isError") else result.get("structuredContent")
        return answer

    @abstractmethod
    def greet(self) -> str:
        """Do what every client does first, and return the server's version. Raises as `call` does."""

    @abstractmethod
    def _asked(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Make a request and return its result."""


class McpClient(Client):
    """A client over pipes."""

    def __init__(
        self, environment: Mapping[str, str], cwd: Path, errors: Path, program: Sequence[str] = PROGRAM
    ) -> None:
        with errors.open("ab") as log:
            self._server = subprocess.Popen(
                [*program, "serve"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=dict(environment),
                cwd=cwd,
                bufsize=0,
                start_new_session=True,
            )
        self.pid = self._server.pid
        self._heard = b""
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pipe in (self._server.stdin, self._server.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._server.wait(10)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()
            raise ServerSilent(f"server {self.pid} did not leave at the end of its input") from error

    def greet(self) -> str:
        answer = self._asked("initialize", **HELLO["params"])
        self._send(READY)
        return str(answer["serverInfo"]["version"])

    def _asked(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._count += 1
        self._send(request(self._count, method, **parameters))
        deadline = time.monotonic() + BOUND
        while True:
            message = json.loads(self._line(deadline))
            if message.get("id") == self._count and "method" not in message:
                result: dict[str, Any] = message.get("result", {"isError": True})
                return result

    def _send(self, message: dict[str, Any]) -> None:
        assert self._server.stdin is not None
        try:
            self._server.stdin.write(json.dumps(message).encode() + b"\n")
        except BrokenPipeError as error:
            raise ServerGone from error

    def _line(self, deadline: float) -> bytes:
        assert self._server.stdout is not None
        descriptor = self._server.stdout.fileno()
        while b"\n" not in self._heard:
            if not select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise ServerSilent(f"server {self.pid} has not answered for {BOUND:g} s")
            more = os.read(descriptor, 65536)
            if not more:
                raise ServerGone
            self._heard += more
        line, _, self._heard = self._heard.partition(b"\n")
        return line


class HttpClient(Client):
    """A client over HTTP."""

    def __init__(
        self, environment: Mapping[str, str], cwd: Path, errors: Path, program: Sequence[str] = PROGRAM
    ) -> None:
        port = free_port()
        command = [*program, "serve", "--http", f"127.0.0.1:{port}"]
        self._server = HttpServer(command, environment, cwd, errors, port)

    def __enter__(self) -> Self:
        try:
            self._server.__enter__()
        except (AssertionError, OSError, HTTPException) as error:  # it was killed before it answered
            raise ServerGone from error
        self.pid = self._server.pid
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.kill()

    def greet(self) -> str:
        meta = self._asked("server/discover")["_meta"]
        return str(meta["io.modelcontextprotocol/serverInfo"]["version"])

    def _asked(self, method: str, **parameters: Any) -> dict[str, Any]:
        try:
            body = self._server.ask_modern(method, **parameters).body
        except TimeoutError as error:
            raise ServerSilent(f"server {self.pid} has not answered") from error
        except (OSError, HTTPException) as error:
            raise ServerGone from error
        lines = [line.removeprefix(b"data: ") for line in body.splitlines() if line[:1] in (b"{", b"d")]
        try:
            last = json.loads(lines[-1])
        except (IndexError, ValueError) as error:  # cut in the middle
            raise ServerGone from error
        result: dict[str, Any] = last.get("result", {"isError": True})
        return result
