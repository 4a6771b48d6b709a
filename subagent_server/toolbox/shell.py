"""One bash process that runs one command after the other, in a session of its own. Blocking.

The shell is a small loop: it reads a command up to a NUL on its stdin, evaluates it with stdin from
`/dev/null`, and writes a random token and the exit code to a pipe that the command cannot see. So no
output, open quote or running job of a command can be taken for its end. A thread reads the output, also
between commands, so that background jobs never wait for a reader.
"""

import fcntl
import math
import os
import re
import secrets
import select
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from subagent_server.run.files import can_be_read
from subagent_server.sandbox.box import Box
from subagent_server.sandbox.box_limits import bound, giving_way, of_system, raise_oom_score
from subagent_server.sandbox.readable import BoxRefused
from subagent_server.sandbox.verify import check_box, ended_early
from subagent_server.toolbox.agent_process import Spare, end_program, spare_none
from subagent_server.toolbox.outputs import OutputCapture

# -- The output of a shell or a program, read by a thread as it comes, so that nobody waits for a reader.


_CHUNK = 1 << 16


class OutputReader:
    """Reads a pipe into captures until its end, or until `close`. It owns the descriptor once it is made."""

    def __init__(self, descriptor: int, new_capture: Callable[[], OutputCapture]) -> None:
        """Raise OSError or RuntimeError: there is no room in the machine; then the descriptor stays open."""
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._new_capture = new_capture
        self._capture = new_capture()
        self._lock = threading.Lock()  # of the capture and of reading into it
        self._wake, self._wake_end = os.pipe()
        self._thread = threading.Thread(target=self._read, name="output", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            os.close(self._wake)
            os.close(self._wake_end)
            raise

    def take(self) -> OutputCapture:
        """Return all that was printed until now, since the last time."""
        with self._lock:
            self._absorb_pending()
            taken, self._capture = self._capture, self._new_capture()
        return taken

    def close(self) -> None:
        """Read what is in the pipe now, and nothing later. `take` works afterwards."""
        os.close(self._wake_end)
        self._thread.join()
        with self._lock:
            self._absorb_pending()
            os.close(self._wake)
            os.close(self._descriptor)
            self._descriptor = -1

    def _read(self) -> None:
        poller = select.poll()
        poller.register(self._descriptor, select.POLLIN)
        poller.register(self._wake, select.POLLIN)
        open_ended = True
        while open_ended:
            if self._wake in {descriptor for descriptor, _ in poller.poll()}:
                return
            with self._lock:
                open_ended = self._absorb(_CHUNK)

    def _absorb(self, limit: int) -> bool:
        try:
            chunk = os.read(self._descriptor, limit)
        except BlockingIOError:
            return True
        self._capture.write(chunk)
        return bool(chunk)

    def _absorb_pending(self) -> None:
        """Read the bytes in the pipe now, and no more: a background job may keep printing for ever."""
        if self._descriptor < 0:
            return
        (pending,) = struct.unpack("i", fcntl.ioctl(self._descriptor, termios.FIONREAD, bytes(4)))
        until = self._capture.total + pending
        while self._capture.total < until and self._absorb(min(_CHUNK, until - self._capture.total)):
            pass


_START_SECONDS = 60.0
_CODE = re.compile(rb"[0-9]{1,3}")
"""A command can find the pipe of the shell in `/proc`, and write anything there."""


class Reason(Enum):
    """Why `Shell.run` came back."""

    DONE = "done"
    DIED = "died"
    TIMED_OUT = "timed out"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Ending:
    """How a command ended. DONE without an exit code: a `break` or `continue` outside of loops cut it off."""

    reason: Reason
    exit_code: int | None = None


class Shell:
    """A running bash. `run` and `close` are for one thread at a time."""

    def __init__(
        self,
        process: "subprocess.Popen[bytes]",
        output: int,
        status: int,
        token: str,
        new_capture: Callable[[], OutputCapture],
        box: Box | None,
    ) -> None:
        self._process = process
        self._box = box
        self._is_checked = box is None
        self._status = status
        self._statuses = _StatusLines(token)
        self._commands = process.stdin.fileno() if process.stdin else -1
        for descriptor in (self._status, self._commands):
            os.set_blocking(descriptor, False)
        self._ended = os.pidfd_open(process.pid)
        try:
            self._output = OutputReader(output, new_capture)
        except (OSError, RuntimeError):
            os.close(self._ended)
            raise

    @classmethod
    def start(
        cls,
        *,
        cwd: Path,
        environment: Mapping[str, str],
        new_capture: Callable[[], OutputCapture],
        box: Box | None = None,
    ) -> "Shell":
        """Start a bash in `cwd` with exactly `environment`, and a thread that reads its output.

        With a `box`, which has its own directory and environment, bash starts in it, and the calling thread
        has to live as long as the shell. Raises OSError or RuntimeError: there is no bash, no such directory,
        or no room for it in the machine; then nothing is left open.
        """
        token = secrets.token_hex(8)
        with ExitStack() as unless_started, ExitStack() as always:
            output, output_end = _pipe(unless_started, always)
            status, status_end = _pipe(unless_started, always)
            program = "bash" if box is None else of_system("bash")
            bash = [program, "--noprofile", "--norc", "-c", _driver(token, status_end)]
            how: dict[str, Any] = {
                "stdin": subprocess.PIPE,
                "stdout": output_end,
                "pass_fds": (status_end,),
                "bufsize": 0,
            }
            if box is not None:
                process = box.start([*giving_way(), *bash], stderr=subprocess.PIPE, **how)
            else:
                process = subprocess.Popen(
                    bash,
                    stderr=subprocess.DEVNULL,
                    cwd=cwd,
                    env=dict(environment),
                    start_new_session=True,
                    **how,
                )
                raise_oom_score(process.pid)
            unless_started.push(process)  # closes its pipes, and collects it
            unless_started.callback(process.kill)
            shell = cls(process, output, status, token, new_capture, box)
            unless_started.pop_all()
            return shell

    @property
    def has_ended(self) -> bool:
        """Whether the shell process is over."""
        return can_be_read(self._ended)

    def run(self, command: str, seconds: float, cancel: int) -> Ending:
        """Run `command`, without a NUL, until it ends, `seconds` are over or `cancel` becomes readable.

        The time in which a new shell gets ready does not count.

        Raises:
            BoxRefused: it is not in the box that was asked for.
        """
        started = self.get_ready(cancel)
        if started.reason is not Reason.DONE:
            return started
        self._statuses.expect()
        return self._wait(command.encode() + b"\0", seconds, cancel)

    def get_ready(self, cancel: int) -> Ending:
        """Wait until a new shell can take its first command, and look at the walls of its box.

        Raises:
            BoxRefused: bubblewrap could not make the box, or it is not as asked for.
        """
        started = Ending(Reason.DONE)
        if not self._statuses.complete:
            started = self._wait(b"", _START_SECONDS, cancel)
        if self._box is None or self._is_checked or started.reason is Reason.INTERRUPTED:
            return started
        if started.reason is Reason.DIED:
            raise ended_early(self._process)
        if started.reason is Reason.TIMED_OUT:
            raise BoxRefused(f"bubblewrap did not get ready within {_START_SECONDS:g} s")
        bound(check_box(self._process, self._box), self._box.limits)
        self._is_checked = True
        return started

    def _wait(self, words: bytes, seconds: float, cancel: int) -> Ending:
        unsent = memoryview(words)
        deadline = time.monotonic() + seconds
        poller = select.poll()
        for descriptor in (self._status, self._ended, cancel):
            poller.register(descriptor, select.POLLIN)
        if unsent:
            poller.register(self._commands, select.POLLOUT)
        while (left := deadline - time.monotonic()) > 0:
            ready = {descriptor for descriptor, _ in poller.poll(math.ceil(left * 1000))}
            if cancel in ready:
                return Ending(Reason.INTERRUPTED)
            if self._commands in ready:
                unsent = self._send(unsent)
                if not unsent:
                    poller.unregister(self._commands)
            if self._status in ready and not self._statuses.read(self._status):
                poller.unregister(self._status)
            if self._statuses.complete:
                return Ending(Reason.DONE, self._statuses.exit_code)
            if self._ended in ready:
                return Ending(Reason.DIED)
        return Ending(Reason.TIMED_OUT)

    def take_output(self) -> OutputCapture:
        """Return all that was printed until now, since the last time."""
        return self._output.take()

    def close(self, grace: float, spare: Spare = spare_none) -> int | None:
        """End the shell and the processes it has started, less those to `spare`: TERM, after `grace` s KILL.

        Return the exit code (negative: the signal), None if the kernel could not kill it. `take_output`
        still works afterwards.
        """
        code = end_program(self._process, self._box, grace, spare)
        self._output.close()
        os.close(self._status)
        os.close(self._ended)
        for pipe in (self._process.stdin, self._process.stderr):
            if pipe is not None:
                pipe.close()
        return code

    def _send(self, unsent: memoryview) -> memoryview:
        try:
            return unsent[os.write(self._commands, unsent) :]
        except BlockingIOError:
            return unsent
        except BrokenPipeError:  # the shell has just ended, which its reader notices
            return memoryview(b"")


@dataclass
class _StatusLines:
    """The reports of the shell: `<token> ready`, and before it `<token> <exit code>` of a command."""

    token: str
    exit_code: int | None = None
    _missing: int = 1
    _rest: bytes = field(default=b"")

    def expect(self) -> None:
        """Wait for the end of one more command."""
        self._missing += 1
        self.exit_code = None

    @property
    def complete(self) -> bool:
        return self._missing == 0

    def read(self, descriptor: int) -> bool:
        """Read what has arrived; False at the end of input."""
        try:
            chunk = os.read(descriptor, 4096)
        except BlockingIOError:
            return True
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for words in map(bytes.split, lines):
            match words:
                case [token, b"ready"] if token == self.token.encode():
                    self._missing -= 1
                case [token, code] if token == self.token.encode() and _CODE.fullmatch(code):
                    self.exit_code = int(code)
                case _:
                    pass
        return bool(chunk)


def _pipe(unless_started: ExitStack, always: ExitStack) -> tuple[int, int]:
    """Return a pipe; its writing end is closed here in any case, because the shell has it."""
    reading, writing = os.pipe()
    unless_started.callback(os.close, reading)
    always.callback(os.close, writing)
    return reading, writing


def _driver(token: str, status: int) -> str:
    """Return the loop, on one line so that bash counts the lines of a command from 1.

    That it is ready again is written in the inner loop's condition, so that a stray `continue` or `break` of
    a command leads there too. `set -e` and `-u` end with their command: a shell that lives on would
    die of the next `grep` without a match. Redirections that a command makes by `exec` are undone.
    """
    output = 8 if status != 8 else 7
    ready = f"builtin printf '%s ready\\n' {token} >&{status}; builtin set +eu"
    take = "builtin read -r -d '' -u 0 || exit"
    run = f'eval "$REPLY" </dev/null >&{output} 2>&{output} {output}>&- {status}>&-'
    say = f"builtin printf '%s %d\\n' {token} \"$?\" >&{status}"
    return f"exec {output}>&1; while :; do while {ready}; {take}; do {run}; {say}; done; done"
