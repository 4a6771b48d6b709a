"""The command on a terminal, with a person at it."""

import os
import pty
from collections.abc import Iterator
from contextlib import contextmanager

from tests.cli.command import Cli, Running, hear


class Terminal:
    """A command with a person at its stdin and stderr."""

    def __init__(self, command: Running, outer: int, inner: int) -> None:
        self.command = command
        self._outer, self._inner = outer, inner

    def hear(self, wanted: str) -> str:
        """Return what the person sees until `wanted`."""
        return hear(self._outer, wanted)

    def type(self, text: str) -> None:
        """Type something."""
        os.write(self._outer, text.encode())

    def next_line(self) -> str:
        """Return the line that the next program on this terminal gets once the person presses Enter."""
        self.type("\n")
        return os.read(self._inner, 4096).decode()


@contextmanager
def person(cli: Cli, *words: str) -> Iterator[Terminal]:
    """Start the command on a terminal; its stdout is a pipe."""
    outer, inner = pty.openpty()
    try:
        with cli.start(*words, stdin=inner, stderr=inner) as command:
            yield Terminal(command, outer, inner)
    finally:
        os.close(outer)
        os.close(inner)
