"""A program with pipes, in a box or not: its lines, its end, and the end of all that it started.

Such are the programs that carry out runs, and MCP servers.

Nothing that it does holds the worker up: a box is made by a thread, lines have a bound, the output of a child
that keeps the pipe after the program's exit is read for a moment only, and a write to a program that reads
nothing can be cancelled.
"""

import asyncio
import os
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from subagent_server.run import processes
from subagent_server.run.processes import Identity
from subagent_server.sandbox.box import Box
from subagent_server.sandbox.verify import discard, start_bounded, start_gated
from subagent_server.toolbox.workspace import off_loop

# -- Ending a session of processes with all their descendants.


Spare = Callable[[Identity], bool]
"""Whether a process is the shim of a run: such a process outlives the program that has started it."""
_BOUND_AFTER_KILL = 5.0
_SHORT_PAUSE, _LONG_PAUSE = 0.005, 0.08
_SIGNALLED = 128
"""Bubblewrap ends with this plus the number of the signal that ended the program in it."""


def spare_none(_: Identity) -> bool:
    """Return False: no process is spared."""
    return False


def end_program(
    process: "subprocess.Popen[bytes]",
    box: Box | None,
    grace: float,
    spare: Spare = spare_none,
    mark: str = "",
) -> int | None:
    """End a program, in a box or not, and all that it started: TERM, after `grace` s KILL. Blocking.

    `spare` is asked outside of a box only, where `mark` (`NAME=value`) is the variable by which processes are
    found that have left its session. Return the exit code (negative: the signal); None if the kernel could
    not kill it.
    """
    if box is not None:
        end_box(process.pid, grace)
    else:
        end_tree(process.pid, grace, spare)
        _send([each for each in processes.marked(mark) if not spare(each)] if mark else [], signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=_BOUND_AFTER_KILL)
    return exit_code_of(process.returncode, box)


def exit_code_of(code: int | None, box: Box | None) -> int | None:
    """Return the exit code of a program (negative: the signal) by that of the process that was started."""
    if box is None or code is None or not 0 < code - _SIGNALLED < signal.NSIG:
        return code
    return _SIGNALLED - code


def how_it_ended(code: int | None) -> str:
    """Return the end of a program as the end of a sentence; `code` as `end_program` returns it."""
    if code is None or code >= 0:
        return "ended" if code is None else f"ended with exit code {code}"
    with suppress(ValueError):
        return f"was ended by {signal.Signals(-code).name}"
    return f"was ended by signal {-code}"


def end_tree(leader: int, grace: float, spare: Spare) -> None:
    """End the session that process `leader` leads and all that descends from it: TERM, after `grace` s KILL.

    Spared descendants, and all processes below them, are left alone. `leader` may have ended but must not
    have been reaped, so that no other process has its pid. The kernel may be unable to kill a process: it is
    left after a few seconds.
    """
    known: list[Identity] = []

    def members() -> list[Identity]:
        nonlocal known
        known = _members(leader, known, spare)
        return known

    _ask_to_end(members, grace)
    _kill(members)


def end_box(leader: int, grace: float) -> None:
    """End all processes of the box that a bubblewrap, `leader`, holds: TERM, after `grace` s KILL.

    The shell in it is only stopped, so that it cannot continue its script: its end would take the others
    with it before they could act on TERM. All these pids are numbers of the host.
    """
    first = processes.descendants([leader])
    frame = [processes.identify(leader), *first[:2]]  # bubblewrap, its process 1, the shell
    _send(first[1:2], signal.SIGSTOP)
    _ask_to_end(lambda: [each for each in processes.descendants([leader]) if each not in frame], grace)
    rest = [each for each in frame if each is not None] + processes.descendants([leader])
    _kill(lambda: [each for each in rest if processes.is_alive(each)])


def _ask_to_end(members: Callable[[], list[Identity]], grace: float) -> None:
    """Send TERM to each process once, until none is left or `grace` seconds are over."""
    warned: set[Identity] = set()
    deadline = time.monotonic() + grace
    pause = _SHORT_PAUSE
    while (known := members()) and time.monotonic() < deadline:
        new = [identity for identity in known if identity not in warned]
        _send(new, signal.SIGTERM)
        _send(new, signal.SIGCONT)  # a stopped process could not act on TERM
        warned.update(new)
        threading.Event().wait(pause)
        pause = min(2 * pause, _LONG_PAUSE)


def _kill(members: Callable[[], list[Identity]]) -> None:
    deadline = time.monotonic() + _BOUND_AFTER_KILL
    while (left := members()) and time.monotonic() < deadline:
        _send(left, signal.SIGKILL)
        threading.Event().wait(_SHORT_PAUSE)


def _members(leader: int, known: list[Identity], spare: Spare) -> list[Identity]:
    """Return the living processes of the session, of `known`, and below them, parents before children.

    A shell whose child is ended before itself would continue with the next line of its script.
    """
    session = _session(leader)
    members = [identity for identity in session if identity.pid == leader]
    members += processes.descendants([leader], spare=spare)
    others = [*session, *(identity for identity in known if processes.is_alive(identity))]
    strays = [identity for identity in others if identity not in members]
    if strays:
        members += strays
        members += processes.descendants([stray.pid for stray in strays], spare=spare)
    return list(dict.fromkeys(members))


def _session(leader: int) -> list[Identity]:
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(ProcessLookupError, PermissionError, ValueError):
            if os.getsid(int(entry.name)) == leader:
                found.append(processes.identify(int(entry.name)))
    return [identity for identity in found if identity is not None and processes.is_alive(identity)]


def _send(targets: list[Identity], number: int) -> None:
    for identity in targets:
        processes.send_signal(identity, number)


LONGEST_LINE = 8 << 20
"""Bytes of one line of a program's output; a longer line is left out."""
_CHUNK = 1 << 16
_AFTER_EXIT_SECONDS = 2.0
"""How long the output is read on after the exit of the program."""
_MARK = "SUBAGENT_AGENT_PROCESS"
"""The variable by which the processes of a program are found that have left its session."""


@dataclass(frozen=True)
class ProcessOrder:
    """The command line of a program, with exactly this environment; a `box` has a directory of its own.

    The program inherits `descriptors`, which are closed here once it has started. `spare` knows which
    processes outlive it. `bounded`: the limits of the box hold for it. A line of more than `longest_line`
    bytes is not taken for one.
    """

    argv: Sequence[str]
    environment: Mapping[str, str]
    cwd: Path
    box: Box | None = None
    descriptors: Sequence[int] = ()
    spare: Spare = spare_none
    bounded: bool = True
    longest_line: int = LONGEST_LINE


async def pipe_reader(
    pipe: IO[bytes] | None, longest_line: int = _CHUNK
) -> tuple[asyncio.StreamReader, asyncio.BaseTransport]:
    """Return what reads a pipe in the event loop, and what closes it."""
    reader = asyncio.StreamReader(limit=longest_line)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    return reader, transport


async def pipe_writer(pipe: IO[bytes] | None) -> asyncio.StreamWriter:
    """Return what writes into a pipe in the event loop."""
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, pipe)
    return asyncio.StreamWriter(transport, protocol, None, loop)


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
        self._transports: list[asyncio.BaseTransport] = []
        self._listening: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._ended = False
        self._end_of_output: asyncio.TimerHandle | None = None

    @classmethod
    async def start(cls, order: ProcessOrder, hear: Callable[[bytes], None]) -> "AgentProcess":
        """Start the program. `hear` is called with what it writes to stderr.

        Raises:
            OSError, ValueError: it cannot be started.
            BoxRefused: its box cannot be made.
        """
        mark = secrets.token_hex(8)
        streams: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        try:
            if order.box is not None:
                process = await _started_in_box(order, order.box, streams)
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
        try:
            await started._connect()
        except BaseException:
            with process:  # closes its pipes
                await started.aclose()
            raise
        return started

    async def _connect(self) -> None:
        self.output = await self._reader(self._process.stdout)
        errors = await self._reader(self._process.stderr)
        self._listening = asyncio.create_task(self._listen(errors))
        self._writer = await pipe_writer(self._process.stdin)
        self._transports.append(self._writer.transport)
        asyncio.get_running_loop().add_reader(self._pidfd, self._has_exited)

    async def _reader(self, pipe: IO[bytes] | None) -> asyncio.StreamReader:
        reader, transport = await pipe_reader(pipe, self._order.longest_line)
        self._transports.append(transport)
        return reader

    async def _listen(self, errors: asyncio.StreamReader) -> None:
        while chunk := await errors.read(_CHUNK):
            self._hear(chunk)

    async def lines(self) -> AsyncIterator[bytes]:
        """Yield the lines of its output, without their newlines; the last one may lack it."""
        is_too_long = False
        while True:
            try:
                line = await self.output.readuntil(b"\n")
            except asyncio.LimitOverrunError as overrun:
                await self.output.readexactly(overrun.consumed)
                is_too_long = True
                continue
            except asyncio.IncompleteReadError as end:
                line = end.partial
            if is_too_long:
                self.left_out += 1
            elif line:
                yield line.removesuffix(b"\n")
            if not line.endswith(b"\n"):
                return
            is_too_long = False

    async def write(self, data: bytes) -> bool:
        """Write to its stdin, and return when it has room again; False if nobody reads there any more."""
        if self._writer is None or self._writer.is_closing():
            return False
        try:
            self._writer.write(data)
            await self._writer.drain()
        except ConnectionError:
            return False
        return True

    def close_input(self) -> None:
        """Close its stdin."""
        if self._writer is not None:
            self._writer.close()

    def interrupt(self) -> None:
        """Send it SIGINT, as Ctrl-C does."""
        if self._order.box is not None:
            # the first is process 1 of the box
            _send(processes.descendants([self._process.pid])[1:2], signal.SIGINT)
        else:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGINT)

    # -- its end

    async def exited(self) -> int | None:
        """Wait until it has exited; return its exit code (negative: the signal)."""
        await self._exited.wait()
        try:
            status = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # `end` has collected it
            status = None
        if status is None:
            code = self._process.wait()
        else:
            code = status.si_status if status.si_code == os.CLD_EXITED else -status.si_status
        return exit_code_of(code, self._order.box)

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
        mark = f"{_MARK}={self._mark}"
        await asyncio.to_thread(end_program, self._process, self._order.box, grace, self._order.spare, mark)
        self._ended = True

    async def aclose(self) -> None:
        """Kill what is left, and close the pipes."""
        await self.end(0, 0)
        if self._listening is not None:
            await asyncio.wait([self._listening], timeout=0.5)
            self._listening.cancel()
        if self._end_of_output is not None:
            self._end_of_output.cancel()
        for transport in self._transports:
            transport.close()
        asyncio.get_running_loop().remove_reader(self._pidfd)
        with suppress(OSError):
            os.close(self._pidfd)

    def _has_exited(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._pidfd)
        self._exited.set()
        # its children may keep the pipe for ever, so the end of its output is a moment after its own
        self._end_of_output = loop.call_later(_AFTER_EXIT_SECONDS, self._transports[0].close)


async def _started_in_box(
    order: ProcessOrder, box: Box, streams: Mapping[str, Any]
) -> "subprocess.Popen[bytes]":
    """Start a program in its box by a thread: a bubblewrap that hangs would hold the loop up for 30 s.

    The box ends with that thread, which stays as long as the loop. Raises OSError, ValueError, BoxRefused.
    """
    start = start_bounded if order.bounded else start_gated
    cancelled = threading.Event()
    started = []

    def work() -> None:
        how = {"pass_fds": order.descriptors, "bufsize": 0, "cancelled": cancelled, **streams}
        started.append(start(box, order.argv, **how))

    try:
        await off_loop(work, interrupt=cancelled.set)
    except asyncio.CancelledError:
        for process in started:  # it was just closed when the caller left it
            discard(process)
        raise
    return started[0]
