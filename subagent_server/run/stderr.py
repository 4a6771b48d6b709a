"""Log to stderr what went wrong besides the work. The work continues, even if stderr cannot be written.

Standard library only: the shim imports this module.
"""

import errno
import io
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from types import TracebackType


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


# -- Failpoints: named points in the code at which a test ends the process, as `kill -9` would.
#
# Kills from outside rarely meet the windows that matter. With
# `SUBAGENT_TEST_DIE_AT=shim.forked:0.1,store.written:0.02` in its environment, a process ends at each named
# point with this probability, after a line on stderr. Without the variable nothing here does anything.
# `make soak` sets it; nothing else should.


VARIABLE = "SUBAGENT_TEST_DIE_AT"
LAST_WORDS = "dies here on purpose:"


def failpoint(name: str) -> None:
    """End this process as SIGKILL does, if the environment lists `name` and the dice agree."""
    listed = os.environ.get(VARIABLE)
    if listed and int.from_bytes(os.urandom(4), "big") / 2**32 < _probability(listed, name):
        os.write(2, f"{LAST_WORDS} {name}\n".encode())
        os.kill(os.getpid(), signal.SIGKILL)


def _probability(listed: str, name: str) -> float:
    for entry in listed.split(","):
        point, _, probability = entry.partition(":")
        if point.strip() == name:
            return float(probability or 1)
    return 0.0


# -- Errors that mean that the machine has no room: for memory, a process, a thread, or an open file.
#
# The interpreter reports them in many forms, anywhere. The outermost frames and the door of the tools
# ask here, so that each becomes one sentence. Where there is no room, an import may fail: so it needs few.


_MEMORY = "There is no memory left: free some, or raise `ulimit -v`, then try again."
_PROCESSES = (
    "No process or thread can be started: end others, or raise `ulimit -u` or the container's limit of pids, "
    "then try again."
)
_BY_NUMBER = {
    errno.ENOMEM: _MEMORY,
    errno.EAGAIN: _PROCESSES,  # of fork(2); other calls that would block are waited for
    errno.EMFILE: "This process may open no more files: raise `ulimit -n`, then try again.",
    errno.ENFILE: "The system may open no more files: end other programs, then try again.",
}
_BY_WORDS = {
    RuntimeError: {"can't start new thread": _PROCESSES},
    ImportError: {"failed to map segment": _MEMORY, "cannot allocate memory": _MEMORY},
    SystemError: {"without exception set": _MEMORY, "without setting an exception": _MEMORY},
}
"""Words in errors that have no number. The interpreter loses some of its own MemoryErrors: a SystemError."""


def lack_of_room(error: BaseException) -> str | None:
    """Return a sentence for an out-of-resources error, None for any other."""
    if isinstance(error, BaseExceptionGroup):
        return next(filter(None, map(lack_of_room, error.exceptions)), None)
    if isinstance(error, MemoryError):
        return _MEMORY
    if isinstance(error, OSError):
        return _BY_NUMBER.get(error.errno or 0)
    for kind, sentences in _BY_WORDS.items():
        if isinstance(error, kind):
            return next((sentence for words, sentence in sentences.items() if words in str(error)), None)
    return None


def of_the_system(error: OSError) -> str:
    """Return a sentence for an error of the system that no rule of ours covers better."""
    named = error.filename
    what = os.fsdecode(named) if isinstance(named, (str, bytes)) else "the system"
    return f"{what}: {error.strerror or error}: fix that, or name another path, then try again."


def half_upgraded(error: BaseException) -> str | None:
    """Return a sentence for an error of a program whose files are replaced one by one; None for any other."""
    if not isinstance(error, ImportError):
        return None
    if isinstance(error, ModuleNotFoundError) or (error.name or "").startswith("subagent_server"):
        what = "A file of subagent, or of a package that it needs,"
        return f"{what} is missing or of another version, as amid an upgrade: {str(error)[:300]}."
    return None


def check_open_files(number: int) -> None:
    """Check that this process may open so many more files.

    Raises:
        OSError: it may not.
    """
    opened: list[int] = []
    try:
        for _ in range(number):
            opened.append(os.dup(0))
    finally:
        for descriptor in opened:
            os.close(descriptor)


def exit_in_one_sentence(code: int) -> None:
    """From now on, an uncaught error for want of room ends this process with `code`, without a traceback."""

    def say(kind: type[BaseException], error: BaseException, trace: "TracebackType | None") -> None:
        sentence = lack_of_room(error)
        if sentence is None:
            sys.__excepthook__(kind, error, trace)
            return
        os.write(2, f"{sentence}\n".encode())
        os._exit(code)

    sys.excepthook = say
