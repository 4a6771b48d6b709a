"""One program: its process, its socket, its clock, and how it has ended.

1. The process is started, in a box or without; `inside.py` in it writes that it is there.
2. The walls of its box are looked at from outside, before it gets its task: until then it runs nothing of the
   model.
3. It gets the code and the names of its functions; its calls are answered until it has ended or is ended.
4. All that is left of it is killed, and only then is its end judged: a process left behind could still write.
"""

import asyncio
import json
import marshal
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, JsonValue
from pydantic_core import from_json

from subagent_server.run import processes
from subagent_server.run.bounded_command import outputs_of
from subagent_server.run.commands import readable
from subagent_server.run.errors import RunRefused, shorten
from subagent_server.run.files import held_open, in_memory
from subagent_server.sandbox.box import Box
from subagent_server.sandbox.box_limits import bound, raise_oom_score
from subagent_server.sandbox.verify import check_box, refusal_of
from subagent_server.toolbox.agent_process import Spare, end_program
from subagent_server.toolbox.outputs import OutputCapture
from subagent_server.toolbox.shell import OutputReader
from subagent_server.toolbox.workspace import off_loop

# -- the interpreter

OLDEST = (3, 9)
_VERSION = "import sys; print('Python', *sys.version_info[:3])"
_VERSION_SECONDS = 30.0
_MOST_VERSION_BYTES = 1 << 20
_LOADER = """\
import marshal, os, sys
line, file = map(int, sys.argv[1:])
os.write(line, b'{"ready": true}\\n')
version, compiled, text = marshal.load(open(file, "rb"))
module = sys.modules["inside"] = type(sys)("inside")
code = marshal.loads(compiled) if version == sys.version else compile(text, "<code mode>", "exec")
exec(code, vars(module))
module.main(line)
"""
"""The first thing is the record that the program is here, so that its box is looked at while it gets ready.
`inside.py` comes compiled, as in a `.pyc` file, for the worker's interpreter; another one compiles it."""
# Read with the import, as in `sandbox/landlock.py`: after an upgrade that of another version is there.
_INSIDE = Path(__file__).with_name("inside.py").read_text(encoding="utf-8")


def version_of(python: str, box: Box | None) -> str:
    """Return the version of the interpreter that an agent file names, asked where programs run. Blocking.

    Raises:
        RunRefused: `config`; it cannot be used.
    """
    command = [python, "-I", "-c", _VERSION]
    streams: dict[str, Any] = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
    }
    try:
        process = subprocess.Popen(command, **streams) if box is None else box.start(command, **streams)
        (output,) = outputs_of(process, _VERSION_SECONDS, _MOST_VERSION_BYTES)
    except (OSError, ValueError) as error:
        raise _unusable(python, str(error)) from error
    except subprocess.TimeoutExpired as error:
        raise _unusable(python, f"it does not say its version within {_VERSION_SECONDS:g} s") from error
    printed = output.decode("utf-8", "replace").strip()
    found = re.fullmatch(r"Python (\d+) (\d+) (\d+)", printed)
    if found is None:
        raise _unusable(python, f"asked for its version, it said: {shorten(printed.partition(chr(10))[0])}")
    if (int(found[1]), int(found[2])) < OLDEST:
        raise _unusable(python, f"it is Python {found[1]}.{found[2]}")
    return ".".join(found.groups())


def _unusable(python: str, why: str) -> RunRefused:
    oldest = ".".join(map(str, OLDEST))
    return RunRefused(
        "config",
        f"codeMode.python: {shorten(python)} cannot be used: {why.rstrip('.')}.",
        f"Name a Python since {oldest}, or leave the key out to use {sys.executable}.",
    )


@cache
def _inside() -> bytes:
    return marshal.dumps((sys.version, marshal.dumps(compile(_INSIDE, "<code mode>", "exec")), _INSIDE))


# -- the time of a program


class ProgramClock:
    """Counts the seconds of one program, from `run_out` on; it stops while the parent is asked."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._left = seconds
        self._since = time.monotonic()
        self._pauses = 0
        self._changed = asyncio.Event()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let no time pass. Pauses may overlap."""
        self._pause(+1)
        try:
            yield
        finally:
            self._pause(-1)

    def _pause(self, by: int) -> None:
        self._count()
        self._pauses += by
        self._changed.set()

    def _count(self) -> None:
        now = time.monotonic()
        if not self._pauses:
            self._left -= now - self._since
        self._since = now

    async def run_out(self) -> None:
        """Return when the time is over."""
        self._since = time.monotonic()
        while True:
            self._changed.clear()
            self._count()
            if self._left <= 0:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(None if self._pauses else self._left):
                    await self._changed.wait()


# -- the host's end of the socket

Reply = dict[str, Any]
Later = Callable[[], Awaitable[Any]]
"""Makes a reply, which may be large: only one reply that waits to be sent is in memory, and not 1,024."""
Answerer = Callable[[str, dict[str, Any]], Awaitable[Reply | Later]]
"""Answers a call of a function with `value`, `text` (and `value`), or `error`, at once or later."""

OF_AGENTS = "@"
"""Begins the names of functions about agents and flows: no tool has such a name."""
MOST_CALLS = 1_000
"""How many calls one program may make."""
MOST_CALLS_AT_ONCE = 64
"""How many of them are under way at the same time; the program waits with the others."""
MOST_REQUEST_BYTES = 4 << 20
"""How much a call may send, as JSON."""
MOST_REPLY_BYTES = 16 << 20
"""How much a call may bring, as JSON."""
MOST_RECORDS = 200 * MOST_CALLS
"""Among them those about agents, of which one call takes several."""
_MOST_WAITS = 1_024
"""How many records about agents are answered at the same time; most of them wait for a run."""
_LARGE = 256 << 10
"""Bytes. A larger record about agents takes the slot of a call: 1,024 of 4 MiB, whose answers the program did
not read, were 3.5 GiB in the worker, which is in no box. No question is as large."""
_TOO_MANY = f"A program may make {MOST_CALLS:,} calls: end it, and continue in another one."
_TOO_LARGE = (
    f"The call was made, but its result has more than {MOST_REPLY_BYTES:,} bytes: ask for less at once."
)


class Broken(Exception):
    """The program has written something that is no record; the text shows it."""


class _Record(BaseModel):
    """A record of the program; `inside.py` explains the keys."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    ready: bool | None = None
    call: int | None = None
    function: str | None = None
    arguments: dict[str, JsonValue] | None = None
    end: int | None = None
    fault: str | None = None
    value: JsonValue = None
    why: str | None = None
    failed: str | None = None


class Channel:
    """The socket of one program. `ended` and `fault` are what the program has reported of its end.

    Every incoming record is data: it has a bound and a fixed form, and the first of another form ends the
    program.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        answer: Answerer,
        most_calls: int = MOST_CALLS,
    ) -> None:
        self.ended = _Record()
        self.fault: str | None = None
        self.closed = asyncio.Event()
        """Set when nobody is left who could write a record."""
        self._reader = reader
        self._writer = writer
        self._answer = answer
        self._most_calls = most_calls
        self._slots = asyncio.Semaphore(MOST_CALLS_AT_ONCE)
        self._waits = asyncio.Semaphore(_MOST_WAITS)
        self._sending = asyncio.Lock()
        self._used: set[int] = set()
        self._calls = 0

    async def begins(self) -> bool:
        """Return whether the program has got ready; False if it has ended. Raises Broken."""
        line = await self._next_line()
        if line is not None and _record(line).ready is not True:
            raise Broken("its first record is not that it is ready")
        return line is not None

    async def send(self, record: str) -> None:
        """Send a record, a line of JSON. A program that has ended gets none."""
        with suppress(ConnectionError):
            self._writer.write(record.encode() + b"\n")
            await self._writer.drain()

    async def serve(self) -> None:
        """Answer the calls of the program, side by side, until no process is left that could make one.

        Raises:
            Broken: a record has not the form that it should have.
        """
        try:
            async with asyncio.TaskGroup() as calls:
                await self._read_calls(calls)
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from errors

    async def _read_calls(self, calls: asyncio.TaskGroup) -> None:
        for _ in range(MOST_RECORDS):
            line = await self._next_line()
            if line is None:
                self.closed.set()
                return
            record = _record(line)
            if record.fault is not None:
                self.fault = record.fault
            elif record.end is not None:
                self.ended = record
            elif record.call is None or record.function is None or record.arguments is None:
                raise Broken("a record is neither a call nor an end")
            elif record.call in self._used:
                raise Broken(f"two calls have the number {record.call}")
            else:
                self._used.add(record.call)
                is_call = not record.function.startswith(OF_AGENTS)
                self._calls += is_call
                slots = self._slots if is_call or len(line) > _LARGE else self._waits
                await slots.acquire()
                calls.create_task(self._serve(record.call, record.function, record.arguments, slots))
        why = "those of status and log among them: wait for a run by result()"
        raise Broken(f"it has written more than {MOST_RECORDS:,} records, {why}")

    async def _serve(
        self, number: int, function: str, arguments: dict[str, Any], slots: asyncio.Semaphore
    ) -> None:
        try:
            answer: Reply | Later = {"error": _TOO_MANY}
            if self._calls <= self._most_calls or function.startswith(OF_AGENTS):
                answer = await self._answer(function, arguments)
            async with self._sending:
                reply = answer if isinstance(answer, dict) else await answer()
                line = json.dumps({"call": number, **reply})
                if len(line) > MOST_REPLY_BYTES:
                    line = json.dumps({"call": number, "error": _TOO_LARGE})
                await self.send(line)
        finally:
            slots.release()

    async def _next_line(self) -> bytes | None:
        """Return the next line, None at the end."""
        try:
            return await self._reader.readuntil(b"\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        except asyncio.LimitOverrunError as error:
            raise Broken(f"a record has more than {MOST_REQUEST_BYTES:,} bytes") from error

    def close(self) -> None:
        """Close the socket."""
        self._writer.close()


def _record(line: bytes) -> _Record:
    try:  # no NaN, no half surrogate pair, at most 200 deep: files of a run can hold nothing else
        return _Record.model_validate(from_json(line, allow_inf_nan=False))
    except ValueError as error:
        raise Broken("a record is not the JSON of a call, or is nested more than 200 deep") from error


# -- the process

MARK = "SUBAGENT_PROGRAM"
"""The variable by which the processes of a program are found that have left its session."""


@dataclass(frozen=True)
class ProgramEnvironment:
    """Where programs run: `python` in `cwd`, with exactly `environment`, or in a `box` with its own.

    `spare` knows which processes outlive the program that has started them.
    """

    python: str
    cwd: Path
    environment: Mapping[str, str]
    box: Callable[[], Box] | None
    spare: Spare


@dataclass
class ProgramProcess:
    """A started program. `line` is the host's end of its socket."""

    line: socket.socket
    _process: "subprocess.Popen[bytes]"
    _output: OutputReader
    _box: Box | None
    _mark: str
    _spare: Spare

    @classmethod
    def start(cls, environment: ProgramEnvironment, mark: str, capture: OutputCapture) -> "ProgramProcess":
        """Start a program that waits for its task; its output goes to `capture`.

        Raises:
            OSError: there is no such interpreter, or no room for it.
            BoxRefused: there is no box as it was asked for.
        """
        box = None if environment.box is None else environment.box()
        line, inner = socket.socketpair()
        inside = in_memory(_inside())
        output, output_end = os.pipe()
        descriptors = (inner.fileno(), inside)
        command = [environment.python, "-I", "-u", "-X", "utf8", "-c", _LOADER, *map(str, descriptors)]
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": output_end, "stderr": output_end}
        try:
            if box is not None:
                process = box.start(command, pass_fds=descriptors, **streams)
            else:
                process = subprocess.Popen(
                    command,
                    pass_fds=descriptors,
                    cwd=environment.cwd,
                    env={**environment.environment, MARK: mark},
                    start_new_session=True,
                    **streams,
                )
                raise_oom_score(process.pid)
        except BaseException:
            line.close()
            os.close(output)
            raise
        finally:
            inner.close()
            os.close(inside)
            os.close(output_end)
        return cls(line, process, OutputReader(output, lambda: capture), box, mark, environment.spare)

    def check(self) -> None:
        """Check the walls of its box from outside, and bound the processes in it.

        Raises:
            BoxRefused: the box is not closed.
        """
        if self._box is not None:
            bound(check_box(self._process, self._box), self._box.limits)

    async def exited(self) -> None:
        """Return when the process has ended."""
        with held_open(os.pidfd_open(self._process.pid)) as pidfd:
            await readable(pidfd)

    def interrupt(self) -> None:
        """Send SIGINT, as Ctrl-C does, to the program and to all that it has started."""
        leader = processes.identify(self._process.pid)
        below = processes.descendants([self._process.pid], spare=self._spare)
        targets = below[1:] if self._box is not None else [leader, *below]  # not the first process of a box
        for identity in targets:
            if identity is not None:
                processes.send_signal(identity, signal.SIGINT)

    def end(self) -> tuple[int | None, str]:
        """Kill all that is left of the program; return its exit code (negative: the signal) and its output.

        Blocking. The code is None if the kernel could not kill it.
        """
        code = end_program(self._process, self._box, 0, self._spare, f"{MARK}={self._mark}")
        self._output.close()
        return code, self._output.take().finish()


# -- the end


class ProgramOutcome(IntEnum):
    """The four outcomes of a program."""

    DONE = 0
    RAISED = 1
    DIED = 2
    FAULT = 3


@dataclass(frozen=True)
class ProgramEnd:
    """How a program has ended: its output in the length for the model, and a remark unless all went well.

    `value` is what the function of a flow has returned, `why` the error and `failed` the code of a failed run
    that have ended it.
    """

    outcome: ProgramOutcome
    exit_code: int | None
    output: str
    remark: str = ""
    value: Any = None
    why: str | None = None
    failed: str | None = None


def judged(channel: Channel, exit_code: int | None, output: str) -> ProgramEnd:
    """Return how a program has ended by itself.

    A fault of our own part counts only if that part has reported it and left with its code: `sys.exit(3)` in
    the code is the code's own affair. A process that left without a report of its end has died.
    """
    ended = channel.ended
    if channel.fault is not None and exit_code == ProgramOutcome.FAULT:
        return ProgramEnd(ProgramOutcome.FAULT, exit_code, output, channel.fault)
    if exit_code is None:
        how = "it could not be killed"
    elif exit_code < 0:
        known = -exit_code in set(signal.Signals)
        how = f"it was ended by signal {signal.Signals(-exit_code).name if known else -exit_code}"
    elif ended.end == 2:
        how = "out of memory"
    elif ended.end not in (0, 1):
        how = f"it left with exit code {exit_code} before its end"
    elif ended.end == exit_code == 0:
        return ProgramEnd(ProgramOutcome.DONE, exit_code, output, value=ended.value)
    else:
        remark = f"[exit code {exit_code}]"
        return ProgramEnd(ProgramOutcome.RAISED, exit_code, output, remark, None, ended.why, ended.failed)
    return ProgramEnd(ProgramOutcome.DIED, exit_code, output, f"[the program died: {how}]")


# -- its course

START_SECONDS = 60.0
INTERRUPT_SECONDS = 5.0
"""How long a program whose time is over may take after SIGINT."""
_LAST_RECORDS_SECONDS = 2.0


@dataclass
class Execution:
    """Runs one program. The time of `clock` bounds it; `answer` answers its calls.

    `task` has its `code`, the `functions`, `types` and `agents` of which it makes its names, and as `flow`
    the arguments of a flow, None for a program of code mode.
    """

    environment: ProgramEnvironment
    task: Mapping[str, Any]
    clock: ProgramClock
    answer: Answerer
    _cut: str | None = None
    """Why the program was ended by us."""

    async def run(self, mark: str, capture: OutputCapture) -> ProgramEnd:
        """Run it to its end. However this ends, no process is left.

        Raises:
            OSError: the interpreter cannot be started.
            BoxRefused: it is not in the box that was asked for.
            RunOver, RunRefused: a call of the program ends the run.
        """
        started: list[ProgramProcess] = []
        ended: tuple[int | None, str] | None = None
        channel: Channel | None = None
        serving: asyncio.Task[None] | None = None
        try:
            await off_loop(lambda: started.append(ProgramProcess.start(self.environment, mark, capture)))
            process = started[0]
            # the limit has room for what surrounds the arguments of the longest call
            streams = await asyncio.open_connection(sock=process.line, limit=MOST_REQUEST_BYTES + 4_096)
            # a flow cannot continue in another program
            most_calls = MOST_CALLS if self.task["flow"] is None else MOST_RECORDS
            channel = Channel(*streams, self.answer, most_calls)
            begun = await self._begun(process, channel)
            if begun:
                serving = asyncio.create_task(channel.serve())
                await self._watched(process, serving)
            ended = await off_loop(process.end)
            if serving is not None:
                await _last_records(channel, serving)
        finally:
            if ended is None and started:
                await off_loop(started[0].end)
            if serving is not None:
                serving.cancel()
                await asyncio.gather(serving, return_exceptions=True)
            if channel is not None:
                channel.close()
        exit_code, output = ended
        if self._cut is not None:
            return ProgramEnd(ProgramOutcome.DIED, exit_code, output, self._cut)
        if begun:
            return judged(channel, exit_code, output)
        if self.environment.box is not None:
            raise refusal_of(output, exit_code)
        words = output.strip().partition("\n")[0] or "it ended at once, without a message"
        raise OSError(f"{self.environment.python} did not start: {words}")

    async def _begun(self, process: ProgramProcess, channel: Channel) -> bool:
        """Send the program its task, once its box is known to be closed; False if it did not get so far."""
        try:
            async with asyncio.timeout(START_SECONDS):
                if not await channel.begins():
                    return False
        except (TimeoutError, Broken):
            self._cut = f"[the interpreter did not get ready within {START_SECONDS:g} s]"
            return False
        await off_loop(process.check)
        await channel.send(json.dumps({**self.task, "mostBytes": MOST_REQUEST_BYTES}))
        return True

    async def _watched(self, process: ProgramProcess, serving: "asyncio.Task[None]") -> None:
        """Return when the program has ended, or has to be ended."""
        exited = asyncio.create_task(process.exited())
        over = asyncio.create_task(self.clock.run_out())
        waits = {exited, over, serving}
        try:
            while not exited.done():
                done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                if serving in done:
                    waits.discard(serving)
                    serving.result()
                if over in done and not exited.done():
                    seconds = f"{self.clock.seconds:g} s"
                    self._cut = f"[timed out after {seconds}: the program and all it had started was ended]"
                    await off_loop(process.interrupt)
                    await asyncio.wait([exited], timeout=INTERRUPT_SECONDS)
                    return
        except Broken as error:
            self._cut = f"[the program was ended for what it wrote to the socket of its calls: {error}]"
        finally:
            exited.cancel()
            over.cancel()


async def _last_records(channel: Channel, serving: "asyncio.Task[None]") -> None:
    """Read what the program wrote before it ended; the calls that are still under way get no more time."""
    closed = asyncio.create_task(channel.closed.wait())
    await asyncio.wait([closed, serving], timeout=_LAST_RECORDS_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    closed.cancel()
    if serving.done():
        with suppress(Broken):
            serving.result()
