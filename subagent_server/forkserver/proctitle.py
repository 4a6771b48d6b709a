"""The command line and the environment of a process, as `/proc` and `ps` show them.

A forked process shows those of the zygote. Processes that are found by marks in their environment would be
missed, so a fork writes its own over them: the kernel reads both from the memory of the process (proc(5),
fields 48 to 51 of `stat`), and a program that is started with a filler in each has room for them.
Linux only. Standard library only.
"""

import ctypes
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

MARKS = "SUBAGENT_"
"""Variables that other processes look for come first, and so are shown however little room there is."""


class ProcessTitle:
    """The two texts in the memory of this process. Make it once, before the first fork."""

    def __init__(self) -> None:
        text = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace")
        fields = text[text.rindex(")") + 2 :].split()
        arguments_begin, arguments_end, environment_begin, environment_end = map(int, fields[45:49])
        self._arguments = _StackText(arguments_begin, arguments_end)
        self._environment = _StackText(environment_begin, environment_end)

    def show_command(self, words: Sequence[str]) -> None:
        """Show a command line; one that is longer than the room is cut."""
        self._arguments.write(os.fsencode(word) for word in words)

    def set_environment(self, variables: Mapping[str, str]) -> None:
        """Make `variables` the whole environment of this process, and show it.

        Variables for which there is no room are not shown. This process and its children have them all.
        """
        _forget_environment()
        os.environ.update(variables)
        ordered = sorted(variables.items(), key=lambda item: not item[0].startswith(MARKS))
        self._environment.write(os.fsencode(f"{name}={value}") for name, value in ordered)


class _StackText:
    """Memory of the stack between two addresses: NUL-terminated texts, then zeros."""

    def __init__(self, begin: int, end: int) -> None:
        if not 0 < begin < end:
            raise OSError("the kernel does not say where the command line and the environment are")
        self._begin = begin
        self._size = end - begin
        self._used = self._size

    def write(self, texts: Iterable[bytes]) -> None:
        """Write as many whole texts as fit. Only the used part is touched: the rest stays shared memory."""
        data = bytearray()
        for text in texts:
            if len(data) + len(text) + 1 < self._size:
                data += text + b"\0"
        size = max(self._used, len(data))
        ctypes.memmove(self._begin, bytes(data).ljust(size, b"\0"), size)
        self._used = len(data)


def _forget_environment() -> None:
    """Empty the environment for C code too, which still points into the memory that is written over."""
    os.environ.clear()
    ctypes.CDLL(None).clearenv()
