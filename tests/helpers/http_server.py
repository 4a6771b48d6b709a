"""The server over HTTP: a real process on a port of its own, its clients, and requests of any kind."""

import atexit
import json
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx2
import mcp_types as types
from anyio.from_thread import start_blocking_portal
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.helpers.forked import popen
from tests.helpers.mcp_client import Mode, Parent
from tests.helpers.processes import identity_of
from tests.helpers.raw_server import MODERN, MODERN_VERSION, request
from tests.helpers.wait import wait_for

BOUND = 60.0
ACCEPT = "application/json, text/event-stream"


def free_port() -> int:
    """Return a port that is nobody else's while this process lives.

    It stays bound here without a listener: a server, which binds with SO_REUSEADDR, can take it, while
    the kernel picks it neither for another bind nor for a connection that goes out.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    atexit.register(held.close)  # which keeps it until then
    return int(held.getsockname()[1])


@dataclass(frozen=True)
class Reply:
    """The answer to a request."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, which has to be JSON, or a stream whose last event is."""
        if self.headers["content-type"].startswith("text/event-stream"):
            *_, last = (line for line in self.body.splitlines() if line.startswith(b"data: {"))
            return json.loads(last.removeprefix(b"data: "))
        return json.loads(self.body)


class HttpServer:
    """A server that runs. Leaving the `with` block kills it; its stderr is appended to `errors`."""

    def __init__(
        self,
        command: list[str],
        environment: Mapping[str, str],
        cwd: Path,
        errors: Path,
        port: int,
    ) -> None:
        self.port = port
        self._command, self._environment, self._cwd, self._errors = command, environment, cwd, errors
        state = environment.get("XDG_STATE_HOME", f"{environment['HOME']}/.local/state")
        self._tokens = Path(state) / "subagent" / "http-tokens"
        self._said_before = errors.stat().st_size if errors.exists() else 0

    def __enter__(self) -> Self:
        with self._errors.open("ab") as log:
            self._process = popen(
                self._command,
                self._environment,
                cwd=self._cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                is_found="--no-token" in self._command,  # the doctor looks for servers that are open to all
            )
        try:
            wait_for(self._answers, BOUND, "the server over HTTP")
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def kill(self) -> None:
        """End it as nothing else can."""
        self._process.kill()
        self._process.wait(BOUND)

    @property
    def url(self) -> str:
        """Where MCP is served."""
        return f"http://127.0.0.1:{self.port}/mcp"

    @property
    def pid(self) -> int:
        """The pid of the server."""
        return self._process.pid

    @property
    def said(self) -> str:
        """What the server has said on stderr."""
        return self._errors.read_bytes()[self._said_before :].decode()

    def token(self, parent: str = "default") -> str:
        """Return the token of a parent, which is given one if it has none."""
        lines = self._tokens.read_text(encoding="utf-8").splitlines()
        known = dict(line.split() for line in lines if not line.startswith("#"))
        if parent not in known:
            known[parent] = f"the-token-of-{parent}-{len(known):020}"
            with self._tokens.open("a", encoding="utf-8") as file:
                file.write(f"{parent} {known[parent]}\n")
        return known[parent]

    @contextmanager
    def parent(self, name: str = "default", mode: Mode = "auto") -> Iterator[Parent]:
        """Give a client with the token of this parent."""
        headers = {"Authorization": f"Bearer {self.token(name)}"}
        bounds = httpx2.Timeout(BOUND, read=300)
        http = httpx2.AsyncClient(
            headers=headers, timeout=bounds, verify=False
        )  # it is slow to load certificates
        failure: Exception | None = None
        with start_blocking_portal() as portal, ExitStack() as opened:
            opened.enter_context(portal.wrap_async_context_manager(http))
            client = Client(
                streamable_http_client(self.url, http_client=http),
                mode=mode,
                client_info=types.Implementation(name=name, version="1"),
            )
            opened.enter_context(portal.wrap_async_context_manager(client))
            try:
                yield Parent(client, portal, identity_of(self.pid))
            except Exception as error:  # noqa: BLE001 - raised again below, where no task group wraps it
                failure = error
        if failure is not None:
            raise failure

    def ask(
        self,
        method: str = "POST",
        path: str = "/mcp",
        body: Any = None,
        token: str | None = "default",
        **headers: str,
    ) -> Reply:
        """Send one request and return its answer. A body that is not bytes is sent as JSON."""
        given = {"Accept": ACCEPT, "Content-Type": "application/json"}
        if token is not None:
            given["Authorization"] = f"Bearer {self.token(token)}"
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection = HTTPConnection("127.0.0.1", self.port, timeout=BOUND)
        try:
            connection.request(method, path, data, given)
            answer = connection.getresponse()
            return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def ask_modern(self, method: str, token: str = "default", **params: Any) -> Reply:
        """Send a request of the newer protocol and return its answer."""
        body = request(1, method, **params, **MODERN)
        names = params.get("name", params.get("uri"))
        named = {} if names is None else {"Mcp_Name": names}
        return self.ask(
            body=body, token=token, Mcp_Method=method, MCP_Protocol_Version=MODERN_VERSION, **named
        )

    def signal(self, number: signal.Signals) -> None:
        """Send the server a signal."""
        self._process.send_signal(number)

    def leaves(self, seconds: float) -> int:
        """Return the exit code of a server that has to leave within `seconds`."""
        return self._process.wait(seconds)

    def _answers(self) -> bool:
        assert self._process.poll() is None, f"the server has left: {self.said}"
        try:
            return self.ask("GET", "/healthz", token=None).status == 200
        except ConnectionRefusedError:
            return False
