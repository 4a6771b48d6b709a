"""The servers by which a program in a box asks its parent: outside, one for each connection to a socket.

The box shows the socket and a relay (`runners/programs/relay.py`), so the token of the run stays outside.
Node and Python close inherited descriptors before they start a server, so the relay is given a path. Whatever
comes over a connection is for the server, which takes everything for data; nothing of it passes through here.
"""

import asyncio
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from subagent_server.host.directory import Entry

MOST_SERVERS = 4
"""Servers of one run at once; one more connection waits until a server has ended."""
_CHUNK = 1 << 16
_LEAVE_SECONDS = 2.0


class ChildServers:
    """Starts `command` with `environment` for each connection to `place`, from `open` to `aclose`.

    `hear` gets what they write to stderr.
    """

    def __init__(
        self,
        place: Entry,
        command: Sequence[str],
        environment: Mapping[str, str],
        hear: Callable[[bytes], None],
    ) -> None:
        self._place = place
        self._command = command
        self._environment = environment
        self._hear = hear
        self._listener: socket.socket | None = None
        self._serving: set[asyncio.Task[None]] = set()

    def open(self) -> None:
        """Take connections from now on. Raises OSError."""
        self._listener = socket.socket(socket.AF_UNIX)
        # by the open directory: the address of a socket has room for some 100 bytes
        self._listener.bind(f"/proc/self/fd/{self._place.directory.writable()}/{self._place.name}")
        self._listener.listen(MOST_SERVERS)
        self._listener.setblocking(False)
        self._listen()

    def _listen(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().add_reader(self._listener, self._accept, self._listener)

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:  # it has gone again
            return
        serving = asyncio.create_task(self._serve(connection))
        self._serving.add(serving)
        serving.add_done_callback(self._served)
        if len(self._serving) >= MOST_SERVERS:
            asyncio.get_running_loop().remove_reader(listener)

    def _served(self, serving: "asyncio.Task[None]") -> None:
        self._serving.discard(serving)
        self._listen()

    async def _serve(self, connection: socket.socket) -> None:
        """Let a server answer a connection until it leaves."""
        try:
            with connection:
                server = await asyncio.create_subprocess_exec(
                    *self._command,
                    env=self._environment,
                    stdin=connection.fileno(),
                    stdout=connection.fileno(),
                    stderr=asyncio.subprocess.PIPE,
                    start_new_session=True,
                )
        except OSError as error:
            self._hear(f"The server for ask_parent cannot be started: {error.strerror}.\n".encode())
            return
        try:
            assert server.stderr is not None
            while chunk := await server.stderr.read(_CHUNK):
                self._hear(chunk)
            await server.wait()
        finally:
            with suppress(ProcessLookupError):
                server.kill()

    async def aclose(self) -> None:
        """End the servers: they leave by themselves once their programs have ended, else they are killed."""
        listener, self._listener = self._listener, None
        if listener is None:
            return
        asyncio.get_running_loop().remove_reader(listener)
        listener.close()
        with suppress(OSError):
            self._place.unlink()
        if self._serving:
            _, late = await asyncio.wait(self._serving, timeout=_LEAVE_SECONDS)
            for serving in late:
                serving.cancel()
            await asyncio.gather(*late, return_exceptions=True)
