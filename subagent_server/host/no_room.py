"""Errors that say that the machine has no room: for memory, a process, a thread, or an open file.

The interpreter reports them in many forms, at any place. The outermost frames and the door of the tools ask
here, so that each becomes one sentence. Standard library only, and little of it.
"""

import errno
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

_MEMORY = "There is no memory left: free some, or raise `ulimit -v`, then try again."
_PROCESSES = "No process or thread can be started: end others, or raise `ulimit -u`, then try again."
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
    """Return the sentence for an error that says that there is no room; None if the error says otherwise."""
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
