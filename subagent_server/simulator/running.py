"""A simulator that runs: in a thread of this process, on a loopback port."""

import asyncio
import socket
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from subagent_server.domain.errors import HostError
from subagent_server.simulator.app import MessagesApi, Respond
from subagent_server.simulator.loading import load_script
from subagent_server.simulator.player import CUT_KEY
from subagent_server.simulator.recorder import RecordedRequest, RequestRecorder
from subagent_server.simulator.script import Script

HOST = "127.0.0.1"
_BACKLOG = 2048
_IDLE_SECONDS = 3600  # a connection that a client keeps open is never closed under its next request
_BOUND_SECONDS = 10.0


class Simulator:
    """A scripted Messages API on loopback, for `with`: point `ANTHROPIC_BASE_URL` at its `base_url`.

    `script` is a script, its file, its content, or a function that gives a turn for each request. With
    `port` 0 the system picks a free one. `record` is a file that every request is appended to. With a `key`,
    only requests that hold it are answered.

    Raises:
        ScriptError: the script cannot be used.
        StorageFailed: the record cannot be opened.
        HostError: on entering, the port is taken.
    """

    def __init__(
        self,
        script: Script | Path | str | Mapping[str, Any] | Respond,
        port: int = 0,
        record: Path | None = None,
        key: str | None = None,
    ) -> None:
        self._script = script if callable(script) else load_script(script)
        self._port = port
        self._key = key
        self._recorder = RequestRecorder(record)
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        """Start; when this returns, requests are answered. Entered again, it is on the same port."""
        listener = _listen(self._port)
        with ExitStack() as on_failure:
            on_failure.callback(listener.close)
            self._recorder.open()
            on_failure.pop_all()
        self._port = listener.getsockname()[1]
        self._server = _Server(MessagesApi(self._script, self._recorder, self._key))
        self._thread = threading.Thread(
            target=self._server.run, args=([listener],), name="simulator", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop: every open connection is cut.

        Raises:
            HostError: the thread is still there after 10 s.
        """
        if self._server is None or self._thread is None:
            return
        self._server.should_exit = True
        self._thread.join(_BOUND_SECONDS)
        if self._thread.is_alive():
            raise HostError(f"The simulator at {self.base_url} did not stop within {_BOUND_SECONDS:g} s.")
        self._recorder.close()

    @property
    def base_url(self) -> str:
        """The address at which it listens: the value for `ANTHROPIC_BASE_URL`."""
        return f"http://{HOST}:{self._port}"

    @property
    def requests(self) -> list[RecordedRequest]:
        """The requests so far, oldest first, at most the last 10,000."""
        return self._recorder.snapshot()

    def wait_for_requests(self, count: int, timeout: float = _BOUND_SECONDS) -> list[RecordedRequest]:
        """Return the requests as soon as `count` of them have arrived.

        Raises:
            TimeoutError: there were fewer after `timeout` seconds.
        """
        return self._recorder.wait_for(count, timeout)

    def clear(self) -> None:
        """Forget the requests so far."""
        self._recorder.clear()


class _CuttableProtocol(H11Protocol):
    """HTTP whose application may close the connection in the middle of an answer."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as its base
        super().connection_made(transport)
        self.app_state = {**self.app_state, CUT_KEY: transport.close}


class _Server(uvicorn.Server):
    """A server that stops at once: it cuts open connections, so that nobody waits for a scripted delay."""

    def __init__(self, api: MessagesApi) -> None:
        super().__init__(
            uvicorn.Config(
                api.app(),
                http=_CuttableProtocol,
                loop="asyncio",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                backlog=_BACKLOG,
                timeout_keep_alive=_IDLE_SECONDS,
            )
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the listener and every connection, and let the answers see it."""
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        if self.server_state.tasks:
            await asyncio.wait(self.server_state.tasks, timeout=_BOUND_SECONDS / 2)


def _listen(port: int) -> socket.socket:
    """Return a socket that already queues connections, so that no client comes too early."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen(_BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        raise HostError(
            f"The simulator cannot listen on {HOST}:{port} ({error}): choose another port, or 0."
        ) from error
    return listener
