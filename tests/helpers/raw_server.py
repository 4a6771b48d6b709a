"""The server over its bare pipes, for what no well-behaved client would send."""

import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.helpers.forked import popen

BOUND = 120.0
HELLO: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": "hello",
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "raw", "version": "1"},
    },
}
MODERN_VERSION = "2026-07-28"
MODERN = {
    "_meta": {
        "io.modelcontextprotocol/protocolVersion": MODERN_VERSION,
        "io.modelcontextprotocol/clientCapabilities": {},
    }
}
"""The parameters that a request of the newer protocol has beside its own."""
READY = {"jsonrpc": "2.0", "method": "notifications/initialized"}


def request(number: int, method: str, **params: Any) -> dict[str, Any]:
    """Return a request."""
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


def tool_call(number: int, tool: str, **arguments: Any) -> dict[str, Any]:
    """Return the request that calls a tool."""
    return request(number, "tools/call", name=tool, arguments=arguments)


class RawServer:
    """A server that runs. Leaving the `with` block kills it; its stderr is appended to `errors`."""

    def __init__(self, command: list[str], environment: Mapping[str, str], cwd: Path, errors: Path) -> None:
        with errors.open("ab") as log:
            self._process = popen(
                command,
                environment,
                cwd=cwd,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self._heard = b""
        self._answers: dict[int | str, dict[str, Any]] = {}
        self.nameless: list[dict[str, Any]] = []
        """Errors that have come for no request that could be told."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait(BOUND)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None and not pipe.closed:
                with suppress(BrokenPipeError):  # what was written after its end
                    pipe.close()

    @property
    def pid(self) -> int:
        """The pid of the server."""
        return self._process.pid

    def say(self, *messages: Mapping[str, Any] | bytes) -> None:
        """Send messages, each on its line; bytes go as they are."""
        lines = [each if isinstance(each, bytes) else json.dumps(each).encode() for each in messages]
        self.say_pieces(*(line + b"\n" for line in lines))

    def say_pieces(self, *pieces: bytes) -> None:
        """Send bytes, each piece with a write of its own."""
        assert self._process.stdin is not None
        for piece in pieces:
            self._process.stdin.write(piece)
            self._process.stdin.flush()

    def answer_to(self, number: int | str) -> dict[str, Any]:
        """Return the answer to the request of this id. Answers come in any order."""
        while number not in self._answers:
            message = self._next()
            if "error" in message and message["id"] is None:
                self.nameless.append(message)
            if ("result" in message or "error" in message) and message["id"] is not None:
                self._answers[message["id"]] = message
        return self._answers.pop(number)

    def result_of(self, call: dict[str, Any]) -> dict[str, Any]:
        """Make a tool call and return its result."""
        self.say(call)
        result: dict[str, Any] = self.answer_to(call["id"])["result"]
        return result

    @property
    def memory_bytes(self) -> int:
        """How much memory the server holds."""
        with Path(f"/proc/{self._process.pid}/statm").open(encoding="ascii") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def say_what_it_takes(self, message: Mapping[str, Any], idle_seconds: float) -> int:
        """Repeat a message, each with an id of its own, until the server takes no more; return how often."""
        assert self._process.stdin is not None
        descriptor, said = self._process.stdin.fileno(), 0
        while select.select([], [descriptor], [], idle_seconds)[1]:
            os.write(descriptor, json.dumps({**message, "id": said}).encode() + b"\n")
            said += 1
        return said

    @property
    def unread(self) -> int:
        """How many bytes of what the server has said lie in the pipe."""
        assert self._process.stdout is not None
        count = fcntl.ioctl(self._process.stdout.fileno(), termios.FIONREAD, bytes(4))
        return int.from_bytes(count, sys.byteorder)

    def stop_listening(self) -> None:
        """Close the reader's end of the server's stdout."""
        assert self._process.stdout is not None
        self._process.stdout.close()

    def end_input(self) -> None:
        """Close the server's stdin."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def signal(self, number: signal.Signals) -> None:
        """Send the server a signal."""
        self._process.send_signal(number)

    def leaves(self, seconds: float) -> int:
        """Return the exit code of a server that has to leave within `seconds`."""
        return self._process.wait(seconds)

    def rest(self) -> list[dict[str, Any]]:
        """Return what the server says until its end; every line of it has to be a message."""
        assert self._process.stdout is not None
        lines = (self._heard + self._process.stdout.read()).splitlines()
        self._heard = b""
        return [_message(line) for line in lines]

    def _next(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        deadline = time.monotonic() + BOUND
        while b"\n" not in self._heard:
            ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"the server said nothing for {BOUND:g} s"
            more = os.read(descriptor, 1 << 20)
            assert more, "the server has left"
            self._heard += more
        line, _, self._heard = self._heard.partition(b"\n")
        return _message(line)


def _message(line: bytes) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(line)
    assert message["jsonrpc"] == "2.0", line
    return message
