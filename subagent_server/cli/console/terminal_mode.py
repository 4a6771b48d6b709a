"""Switch the terminal to a full screen, and restore it however the command ends.

The terminal is restored at the end of the block, at SIGTERM and SIGHUP, which then end the command as usual,
and at Ctrl-Z, after which `fg` enters the screen again. If the command is killed (SIGKILL), a small process
that waits for this restores it.
"""

import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType

_ENTER = b"\x1b[?1049h\x1b[?25l\x1b[?2004h"
"""The other page of the terminal, without a cursor; a paste comes in brackets."""
_LEAVE = b"\x1b[0m\x1b[?2004l\x1b[?25h\x1b[?1049l"
_ENDING = (signal.SIGTERM, signal.SIGHUP)
_DONE = b"."


class EndedBySignal(BaseException):
    """A signal that ends the command; the terminal is restored on the way out."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class TerminalMode:
    """The terminal at stdin and stdout, in the mode of a full screen. A context manager."""

    def __init__(self) -> None:
        self._stdin, self._stdout = sys.stdin.fileno(), sys.stdout.fileno()
        self._before = termios.tcgetattr(self._stdin)
        self._handlers: dict[int, object] = {}
        self._wake_reader, self._wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._guard = -1
        self._is_entered = False
        self.is_resized = True
        """Whether the size may be another, or the page was left meanwhile: all of it is to be drawn anew."""

    def __enter__(self) -> "TerminalMode":
        self._guard = _guard(self._stdin, self._stdout, self._before)
        for number in (*_ENDING, signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH):
            self._handlers[number] = signal.signal(number, self._hear)
        self._enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        with suppress(OSError, termios.error):  # the terminal itself may be gone
            self._leave()
        os.write(self._guard, _DONE)
        for descriptor in (self._guard, self._wake_reader, self._wake_writer):
            os.close(descriptor)
        if isinstance(error, EndedBySignal):
            signal.signal(error.number, signal.SIG_DFL)
            os.kill(os.getpid(), error.number)

    @contextmanager
    def left(self) -> Iterator[None]:
        """Restore the terminal for another program or a question, then enter the screen again."""
        self._leave()
        try:
            yield
        finally:
            self._enter()

    @property
    def size(self) -> tuple[int, int]:
        """The columns and lines of the terminal now."""
        try:
            found = os.get_terminal_size(self._stdout)
        except OSError:
            return 80, 24
        return found.columns or 80, found.lines or 24

    def wake(self) -> None:
        """End a wait for input, from any thread."""
        with suppress(OSError):  # it is full of calls already, or closed
            os.write(self._wake_writer, _DONE)

    def read(self, seconds: float) -> bytes | None:
        """Return what was typed within this time: nothing if woken, None at the end of the input."""
        ready, _, _ = select.select([self._stdin, self._wake_reader], [], [], seconds)
        if self._wake_reader in ready:
            os.read(self._wake_reader, 4096)
        if self._stdin not in ready:
            return b""
        try:
            return os.read(self._stdin, 4096) or None
        except OSError:  # the terminal has gone
            return None

    def draw(self, data: bytes) -> None:
        """Write to the terminal. Raises OSError if it has gone."""
        while data:
            data = data[os.write(self._stdout, data) :]

    def _enter(self) -> None:
        tty.setcbreak(self._stdin, termios.TCSANOW)
        self.draw(_ENTER)
        self._is_entered = self.is_resized = True

    def _leave(self) -> None:
        self._is_entered = False
        _restore(self._stdin, self._stdout, self._before)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if number in _ENDING:
            raise EndedBySignal(number)
        was_entered = self._is_entered
        if number == signal.SIGTSTP:
            if was_entered:
                self._leave()
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTSTP)  # this process stands still here until SIGCONT
            signal.signal(signal.SIGTSTP, self._hear)
        if number in (signal.SIGTSTP, signal.SIGCONT) and was_entered:
            self._enter()
        self.is_resized = True
        self.wake()


def _restore(stdin: int, stdout: int, before: list[object]) -> None:
    os.write(stdout, _LEAVE)
    termios.tcsetattr(stdin, termios.TCSADRAIN, before)  # type: ignore[arg-type]


def _guard(stdin: int, stdout: int, before: list[object]) -> int:
    """Fork a process that restores the terminal if this one is killed; return the line that it waits on."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    if os.fork() == 0:
        try:
            for number in (*_ENDING, signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGTTOU):
                signal.signal(number, signal.SIG_IGN)
            os.close(writer)
            os.setpgid(0, 0)  # what the terminal sends to the command is not meant for it
            if not os.read(reader, 1):
                _restore(stdin, stdout, before)
        finally:
            os._exit(0)
    os.close(reader)
    return writer
