"""The connections by which the program of a run reaches the tools of a child: its worker answers them.

The program starts a relay (`runners/programs/relay.py`) as its MCP server, which leads to a socket of the
run. So the token of the run stays outside of a box, and nothing heavy waits beside each program. Node and
Python close inherited descriptors before they start a server, so the relay is given a path. A process that
reaches the socket has the rights of the run, so a box shows the socket of its own run alone.
"""

import asyncio
import socket
import sys
from contextlib import suppress
from pathlib import Path

from subagent_server.host.stderr import log
from subagent_server.runners.programs import relay
from subagent_server.runners.programs.dialect import ChildServer
from subagent_server.server.connection import ClientConnection, SharedByClients
from subagent_server.server.serving import Serving
from subagent_server.server.stdio import Reports
from subagent_server.service.access import run_as_caller
from subagent_server.service.context import Service
from subagent_server.worker.run_context import WorkerRun

MOST_CONNECTIONS = 4
"""Connections of one run at once; one more waits until one of them has ended."""
_LEAVE_SECONDS = 2.0
_NAME = "subagent"
_VARIABLES = ("SUBAGENT_RUN_ID", "SUBAGENT_RUN_TOKEN", "SUBAGENT_RUNS", "SUBAGENT_AGENTS")


class ChildConnections:
    """Answers each connection to the run's socket with the tools of a child, from `open` to `aclose`."""

    def __init__(self, run: WorkerRun, service: Service) -> None:
        """Nothing is opened yet. The processes that `service` starts are reaped by its owner."""
        run.paths.program.make()
        self._place = run.paths.parent_socket
        self._service = service
        self._caller = run_as_caller(run.store, run.run_id)
        self._shared = SharedByClients(self._service, self._caller)
        self._reports = Reports()
        self._listener: socket.socket | None = None
        self._answering: set[asyncio.Task[None]] = set()

    @property
    def relay(self) -> ChildServer:
        """The command by which the program reaches the socket. It needs no variable."""
        words = ["-I", "-S", str(Path(relay.__file__).resolve()), str(self._place.path)]
        return ChildServer(_NAME, sys.executable, words, ())

    def open(self) -> None:
        """Take connections from now on. Raises OSError: the file system has no sockets, or no room."""
        listener = socket.socket(socket.AF_UNIX)
        try:
            # by the open directory: the address of a socket has room for some 100 bytes
            listener.bind(f"/proc/self/fd/{self._place.directory.writable()}/{self._place.name}")
            listener.listen(MOST_CONNECTIONS)
        except OSError:
            listener.close()
            raise
        listener.setblocking(False)
        self._listener = listener
        self._listen()

    def _listen(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().add_reader(self._listener, self._accept, self._listener)

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:  # it has gone again
            return
        answering = asyncio.create_task(self._answer(connection))
        self._answering.add(answering)
        answering.add_done_callback(self._answered)
        if len(self._answering) >= MOST_CONNECTIONS:
            asyncio.get_running_loop().remove_reader(listener)

    def _answered(self, answering: "asyncio.Task[None]") -> None:
        self._answering.discard(answering)
        self._listen()

    async def _answer(self, connection: socket.socket) -> None:
        """Answer the requests of one connection until it ends."""
        with connection:
            connection.setblocking(True)  # a long answer is written by a thread
            client = ClientConnection(self._service, "child", self._caller, self._shared)
            serving = Serving(client, connection.fileno(), connection.fileno(), self._reports)
            try:
                failure = await serving.until_left()
                if failure is not None:
                    log(f"A connection of the program has failed: {failure}")
            finally:
                with suppress(OSError):  # it is not connected any more
                    connection.shutdown(socket.SHUT_RDWR)
                await serving.aclose()

    async def aclose(self) -> None:
        """End the connections: they end by themselves once their programs have ended, else they are cut."""
        listener, self._listener = self._listener, None
        if listener is None:
            return
        asyncio.get_running_loop().remove_reader(listener)
        listener.close()
        with suppress(OSError):
            self._place.unlink()
        if self._answering:
            _, late = await asyncio.wait(self._answering, timeout=_LEAVE_SECONDS)
            for answering in late:
                answering.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        self._shared.runs.close()


def whole_server() -> ChildServer:
    """Return the command of a server for children that reaches the run by its files alone."""
    # -P: a directory of the run's own must not be searched for modules
    args = ["-P", "-m", "subagent_server", "serve", "--role", "child"]
    return ChildServer(_NAME, sys.executable, args, _VARIABLES)
