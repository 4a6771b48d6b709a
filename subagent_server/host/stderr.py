"""Log to stderr what went wrong beside the work. The work goes on, even if stderr cannot be written.

Standard library only: the shim imports this module.
"""

import io
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO


class MaskedText(io.TextIOBase):
    """A stream for a file of a run: each text passes through `mask`, which takes secrets out."""

    def __init__(self, stream: TextIO, mask: Callable[[str], str]) -> None:
        self._stream = stream
        self._mask = mask

    def write(self, text: str) -> int:
        """Write `text` without its secrets."""
        self._stream.write(self._mask(text))
        return len(text)

    def flush(self) -> None:
        """Write out the text that is still buffered."""
        self._stream.flush()

    def fileno(self) -> int:
        """Return the descriptor of the stream."""
        return self._stream.fileno()


def log(sentence: str) -> None:
    """Print a line. stderr of a run is a file: a disk that refuses the others refuses this file too."""
    with suppress(OSError):
        print(sentence, file=sys.stderr, flush=True)


def log_exception() -> None:
    """Print the traceback of the exception that is being handled."""
    with suppress(OSError):
        traceback.print_exc()
        sys.stderr.flush()


def flush() -> None:
    """Write out the lines that are still buffered, before a process exits by `os._exit`."""
    with suppress(OSError):
        sys.stderr.flush()
