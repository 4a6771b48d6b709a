"""The connections by which the program of a run reaches the tools of a child: its worker answers them.

The program starts a relay (`extensions/programs/relay.py`) as its MCP server, which leads to pipes that the
program has inherited. So the token of the run stays outside of a box, nothing lies on a disk, a box needs
no socket, and nothing heavy waits next to each program. Whoever may look into the program has the rights of
the run: in a box, the processes of the same box. They can also write into these pipes and empty them, so
nothing here waits for a pipe without the event loop.
"""

import array
import asyncio
import fcntl
import os
import select
import socket
import sys
import termios
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from subagent_server.extensions.programs import relay
from subagent_server.extensions.programs.program import ChildServer
from subagent_server.run.commands import readable
from subagent_server.run.stderr import log
from subagent_server.toolbox.agent_process import pipe_reader, pipe_writer
from subagent_server.verbs.access import run_as_caller
from subagent_server.verbs.service import Service
from subagent_server.worker.worker_run import WorkerRun

if TYPE_CHECKING:
    from subagent_server.server.connection import SharedByClients

MOST_CONNECTIONS = 4
"""Connections of one run at once; one more waits until one of them has ended."""
_LEAVE_SECONDS = 2.0
_UNREAD_SECONDS = 1.0
"""How long the last answers of a connection may lie unread: their relay may be gone."""
_POLL_SECONDS = 0.01
_CHUNK = 1 << 16
_MOST_CHUNKS = 32
_END = b"\0"
_NAME = "subagent"


class _Pipe:
    """A pipe that the program inherits. It names the pipe to a relay, which opens the end that it needs.

    `writing` is held, so that a relay that reads finds no end of file: not if only relays write.
    """

    def __init__(self, *, relays_write: bool = False) -> None:
        self.reading, self.writing = os.pipe()
        os.set_blocking(self.writing, False)
        if relays_write:
            os.close(self.writing)
            self.writing = -1
        self.inode = str(os.fstat(self.reading).st_ino)

    def opened(self, flags: int) -> int:
        """Return a descriptor of its own kind, which never blocks."""
        return os.open(f"/proc/self/fd/{self.reading}", flags | os.O_NONBLOCK | os.O_CLOEXEC)

    def is_read(self) -> bool:
        """Whether nothing lies in it."""
        count = array.array("i", [0])
        fcntl.ioctl(self.reading, termios.FIONREAD, count)
        return count[0] == 0

    def clear(self) -> None:
        """Throw away what lies in it."""
        with os.fdopen(self.opened(os.O_RDONLY), "rb", buffering=0) as file:
            for _ in range(_MOST_CHUNKS):  # more than a pipe holds: another process may keep writing
                if not file.read(_CHUNK):
                    break

    def close(self) -> None:
        os.close(self.reading)
        if self.writing >= 0:
            os.close(self.writing)


class ChildConnections:
    """Answers each relay with the tools of a child, from `open` to `aclose`."""

    def __init__(self, run: WorkerRun, service: Service) -> None:
        """Nothing is opened yet. The processes that `service` starts are reaped by its owner."""
        self._service = service
        self._caller = run_as_caller(run.store, run.run_id)
        self._shared: SharedByClients | None = None
        self._pipes: list[_Pipe] = []
        """The pipe of the tickets, and for each connection one from the relay and one to it."""
        self._openings: dict[int, tuple[int, int]] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self._closing = False

    @property
    def relay(self) -> ChildServer:
        """The command by which the program reaches this worker."""
        words = ["-I", "-S", str(Path(relay.__file__).resolve()), *(pipe.inode for pipe in self._pipes)]
        return ChildServer(_NAME, sys.executable, words)

    def inherited(self) -> list[int]:
        """Return new descriptors for the program to inherit. The caller closes them."""
        return [os.dup(pipe.reading) for pipe in self._pipes]

    def open(self) -> None:
        """Take connections from now on. Raises OSError: there is no room for more descriptors."""
        self._pipes.append(_Pipe())
        for _ in range(MOST_CONNECTIONS):
            self._pipes += [_Pipe(relays_write=True), _Pipe()]
        for number in range(MOST_CONNECTIONS):
            self._listen(number)

    def _listen(self, number: int) -> None:
        """Let a relay take a connection. Until it has, an end to write is open, or poll(2) would say EOF."""
        up = self._pipes[1 + 2 * number]
        incoming = up.opened(os.O_RDONLY)
        self._openings[number] = (incoming, up.opened(os.O_WRONLY))
        asyncio.get_running_loop().add_reader(incoming, self._begin, number)
        with suppress(BlockingIOError):  # the program has filled the pipe: its own relays find no ticket
            os.write(self._pipes[0].writing, bytes([number]))

    def _begin(self, number: int) -> None:
        """Answer a relay, which has shown its ticket."""
        incoming, held = self._openings[number]
        try:
            os.read(incoming, 1)
        except BlockingIOError:  # another process was quicker
            return
        del self._openings[number]
        asyncio.get_running_loop().remove_reader(incoming)
        os.close(held)
        answering = asyncio.create_task(self._answer(number, incoming))
        self._answering.add(answering)
        answering.add_done_callback(self._answering.discard)

    async def _answer(self, number: int, incoming: int) -> None:
        """Answer one relay until it ends, then let another one take its connection."""
        up, down = self._pipes[1 + 2 * number : 3 + 2 * number]
        reader, from_relay = await pipe_reader(os.fdopen(incoming, "rb", buffering=0))
        writer = await pipe_writer(os.fdopen(down.opened(os.O_WRONLY), "wb", buffering=0))
        ours, theirs = socket.socketpair()
        inside, outside = await asyncio.open_connection(sock=ours)
        upward = asyncio.create_task(_carry(reader, outside, ends=True))
        downward = asyncio.create_task(_carry(inside, writer, ends=False))
        cutting = asyncio.create_task(_cut(incoming, down, outside))
        try:
            await self._serve(theirs)
            await asyncio.wait([downward], timeout=_UNREAD_SECONDS)
            writer.write(_END)
            deadline = time.monotonic() + _UNREAD_SECONDS
            while time.monotonic() < deadline and not (
                down.is_read() and writer.transport.get_write_buffer_size() == 0
            ):
                await asyncio.sleep(_POLL_SECONDS)
        finally:
            for task in (upward, downward, cutting):
                task.cancel()
            await asyncio.wait([upward, downward, cutting])
            outside.close()
            from_relay.close()
            writer.transport.abort()
            up.clear()
            down.clear()
            if not self._closing:
                self._listen(number)

    async def _serve(self, connection: socket.socket) -> None:
        # Not at the top: the SDK takes 0.5 s and 25 MiB of a worker whose program asks nothing.
        from subagent_server.server.connection import ClientConnection, SharedByClients
        from subagent_server.server.stdio import Serving

        with connection:
            connection.setblocking(True)  # a long answer is written by a thread
            if self._shared is None:
                self._shared = SharedByClients(self._service, self._caller)
            client = ClientConnection(self._service, "child", self._caller, self._shared)
            serving = Serving(client, connection.fileno(), connection.fileno())
            try:
                failure = await serving.until_left()
                if failure is not None:
                    log(f"A connection of the program has failed: {failure}")
            finally:
                with suppress(OSError):  # the connection has ended
                    connection.shutdown(socket.SHUT_RDWR)
                await serving.aclose()

    async def aclose(self) -> None:
        """End the connections: they end by themselves once their programs have ended, else they are cut."""
        self._closing = True
        for incoming, held in self._openings.values():
            asyncio.get_running_loop().remove_reader(incoming)
            os.close(incoming)
            os.close(held)
        if self._answering:
            _, late = await asyncio.wait(self._answering, timeout=_LEAVE_SECONDS)
            for answering in late:
                answering.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        for pipe in self._pipes:
            pipe.close()
        self._pipes = []
        if self._shared is not None:
            self._shared.runs.close()


async def _cut(incoming: int, down: _Pipe, outside: asyncio.StreamWriter) -> None:
    """Cut a connection whose relay has closed its end, and whose answers nobody reads.

    The end of file would come behind all that the relay has sent, which is not read before the answers are.
    """
    with select.epoll() as closed:
        closed.register(incoming, 0)  # it reports that the other end is closed, and no data
        await readable(closed.fileno())
    unread = 0.0
    while unread < _UNREAD_SECONDS:
        await asyncio.sleep(_POLL_SECONDS)
        unread = 0.0 if down.is_read() else unread + _POLL_SECONDS
    outside.transport.abort()


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, ends: bool) -> None:
    with suppress(ConnectionError):
        while chunk := await reader.read(_CHUNK):
            writer.write(chunk)
            await writer.drain()
        if ends:
            writer.write_eof()
