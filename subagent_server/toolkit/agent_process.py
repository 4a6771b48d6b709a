"""The process of a program that carries out a run: its lines, its end, and the end of all that it started.

Nothing that it does holds the worker up: lines have a bound, the output of a child that keeps the pipe after
the program's exit is read for a moment only, and a write to a program that reads nothing can be given up.
"""

import asyncio
import os
import secrets
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from subagent_server.host import process_scan, processes
from subagent_server.sandbox.box import Box
from subagent_server.sandbox.gated_start import start_bounded
from subagent_server.toolkit.workspace.process_tree import Spare, end_box, end_tree, spare_none

LONGEST_LINE = 8 << 20
"""Bytes of one line of a program's output; a longer line is left out."""
_CHUNK = 1 << 16
_AFTER_EXIT_SECONDS = 2.0
"""How long the output is read on after the exit of the program: its children may keep the pipe for ever."""
_MARK = "SUBAGENT_AGENT_PROCESS"
"""The variable by which the processes of a program are found that have left its session."""
_SIGNALLED = 128
"""Bubblewrap ends with this plus the number of the signal that ended the program in it."""


@dataclass(frozen=True)
class ProcessOrder:
    """The command line of a program, with exactly this environment; a `box` has a directory of its own.

    The program inherits `descriptors`, which are closed here once it has started. `spare` says which
    processes outlive it.
    """

    argv: Sequence[str]
    environment: Mapping[str, str]
    cwd: Path
    box: Box | None = None
    descriptors: Sequence[int] = field(default=())
    spare: Spare = spare_none


class AgentProcess:
    """A started program. `lines` may be iterated once."""

    def __init__(
        self,
        process: "subprocess.Popen[bytes]",
        order: ProcessOrder,
        mark: str,
        hear: Callable[[bytes], None],
    ) -> None:
        self.left_out = 0
        """How many lines were too long."""
        self._process = process
        self._order = order
        self._mark = mark
        self._hear = hear
        self._exited = asyncio.Event()
        self._pidfd = os.pidfd_open(process.pid)
        asyncio.get_running_loop().add_reader(self._pidfd, self._has_exited)
        self._transports: list[asyncio.BaseTransport] = []
        self._listening: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._ended = False

    @classmethod
    async def start(cls, order: ProcessOrder, hear: Callable[[bytes], None]) -> "AgentProcess":
        """Start the program. `hear` gets what it writes to stderr.

        Raises:
            OSError, ValueError: it cannot be started.
            BoxRefused: its box cannot be made.
        """
        mark = secrets.token_hex(8)
        streams: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        try:
            if order.box is not None:
                process = start_bounded(
                    order.box, order.argv, pass_fds=order.descriptors, bufsize=0, **streams
                )
            else:
                process = subprocess.Popen(
                    order.argv,
                    cwd=order.cwd,
                    env={**order.environment, _MARK: mark},
                    pass_fds=order.descriptors,
                    start_new_session=True,
                    bufsize=0,
                    **streams,
                )
        finally:
            for descriptor in order.descriptors:
                os.close(descriptor)
        started = cls(process, order, mark, hear)
        await started._connect()
        return started

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        self._output = await self._reader(self._process.stdout)
        errors = await self._reader(self._process.stderr)
        self._listening = asyncio.create_task(self._listen(errors))
        transport, protocol = await loop.connect_write_pipe(
            asyncio.streams.FlowControlMixin, self._process.stdin
        )
        self._transports.append(transport)
        self._writer = asyncio.StreamWriter(transport, protocol, None, loop)

    async def _reader(self, pipe: IO[bytes] | None) -> asyncio.StreamReader:
        reader = asyncio.StreamReader(limit=_CHUNK)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
        self._transports.append(transport)
        return reader

    async def _listen(self, errors: asyncio.StreamReader) -> None:
        while chunk := await errors.read(_CHUNK):
            self._hear(chunk)

    # -- what it says

    async def lines(self) -> AsyncIterator[bytes]:
        """Yield the lines of its output, without their newlines; the last one may lack it."""
        rest, is_too_long = b"", False
        async for chunk in self._chunks():
            *whole, rest = (rest + chunk).split(b"\n")
            for line in whole:
                if is_too_long or len(line) > LONGEST_LINE:
                    self.left_out += 1
                    is_too_long = False
                else:
                    yield line
            if is_too_long or len(rest) > LONGEST_LINE:
                rest, is_too_long = b"", True
        if is_too_long:
            self.left_out += 1
        elif rest:
            yield rest

    async def _chunks(self) -> AsyncIterator[bytes]:
        """Yield the output until its end, or a moment longer than the program lives."""
        exited = asyncio.create_task(self._exited.wait())
        deadline: float | None = None
        try:
            while deadline is None or asyncio.get_running_loop().time() < deadline:
                reading = asyncio.ensure_future(self._output.read(_CHUNK))
                waited = [reading] if deadline is not None else [reading, exited]
                await asyncio.wait(
                    waited,
                    timeout=None if deadline is None else _AFTER_EXIT_SECONDS,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if exited.done() and deadline is None:
                    deadline = asyncio.get_running_loop().time() + _AFTER_EXIT_SECONDS
                    await asyncio.wait([reading], timeout=_AFTER_EXIT_SECONDS)
                if not reading.done():
                    reading.cancel()
                    await asyncio.wait([reading])
                    return
                if not (chunk := reading.result()):
                    return
                yield chunk
        finally:
            exited.cancel()

    # -- its input

    async def write(self, data: bytes) -> None:
        """Write to its stdin, and return when it has room again. A program that is gone hears nothing."""
        if self._writer is None or self._writer.is_closing():
            return
        with suppress(ConnectionError):
            self._writer.write(data)
            await self._writer.drain()

    def close_input(self) -> None:
        """Close its stdin."""
        if self._writer is not None:
            self._writer.close()

    def interrupt(self) -> None:
        """Send it SIGINT, as Ctrl-C does."""
        if self._order.box is not None:
            inside = process_scan.descendants([self._process.pid])[1:2]  # the first is process 1 of the box
            for identity in inside:
                processes.send_signal(identity, signal.SIGINT)
        else:
            self._send(signal.SIGINT)

    # -- its end

    async def exited(self) -> int | None:
        """Wait until it has exited; return its exit code (negative: the signal)."""
        await self._exited.wait()
        status = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if status is None:
            return self._process.returncode
        code = status.si_status if status.si_code == os.CLD_EXITED else -status.si_status
        in_box = self._order.box is not None and code > _SIGNALLED
        return _SIGNALLED - code if in_box else code

    async def end(self, patience: float, grace: float) -> None:
        """Wait `patience` s for its exit, then end it and all that it started: TERM, after `grace` s KILL.

        Called any number of times. After it, nothing that the program has started works any more.
        """
        if self._ended:
            return
        self.close_input()
        if patience > 0:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._exited.wait(), patience)
        await asyncio.to_thread(self._end, grace)
        self._ended = True

    async def aclose(self) -> None:
        """Kill what is left, and close the pipes."""
        await self.end(0, 0)
        if self._listening is not None:
            await asyncio.wait([self._listening], timeout=0.5)
            self._listening.cancel()
        for transport in self._transports:
            transport.close()
        asyncio.get_running_loop().remove_reader(self._pidfd)
        with suppress(OSError):
            os.close(self._pidfd)

    def _end(self, grace: float) -> None:
        """End all of its processes, and collect the program. Blocking."""
        if self._order.box is None:
            end_tree(self._process.pid, grace, self._order.spare)
            for identity in process_scan.marked(f"{_MARK}={self._mark}"):
                if not self._order.spare(identity):
                    processes.send_signal(identity, signal.SIGKILL)
        else:
            end_box(self._process.pid, grace)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)

    def _send(self, number: int) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    def _has_exited(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        self._exited.set()
