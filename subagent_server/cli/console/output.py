"""Where words go: data to stdout, talk to stderr. A reader who has left ends the command quietly."""

import json
import os
import select
import sys
from typing import Any, TextIO

from subagent_server.cli.console.exits import ExitCode, Leave


class OutputClosed(Exception):
    """Whoever read the output has left (`subagent ls | head -1`): there is nothing more to say."""


def prepare_streams() -> None:
    """Let no text stop the command: what the terminal's encoding lacks is written as an escape."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def out(text: str) -> None:
    """Print data.

    Raises:
        OutputClosed: nobody reads any more.
        Leave: it cannot be written.
    """
    _write(sys.stdout, f"{text}\n")


def talk(text: str) -> None:
    """Print what is for people and no data, to stderr. Raises as `out` does."""
    _write(sys.stderr, f"{text}\n")


def complain(sentence: str) -> None:
    """Print the one line of an error or a remark, to stderr. Raises as `out` does."""
    talk(f"subagent: {sentence}")


def out_json(value: Any, *, indent: int | None = 1) -> None:
    """Print one JSON value; with `indent` None on one line. Raises as `out` does."""
    out(json_text(value, indent=indent))


def json_text(value: Any, *, indent: int | None = 1) -> str:
    """Return `value` as JSON that is safe on a terminal: what does not print is a JSON escape."""
    text = json.dumps(value, ensure_ascii=not _speaks_unicode(), indent=indent)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a person sits at the other end."""
    return stream is not None and stream.isatty()


def reader_is_gone() -> bool:
    """Whether nobody can read stdout any more, although nothing was written to it yet."""
    poller = select.poll()
    try:
        poller.register(sys.stdout.fileno(), 0)
    except (AttributeError, OSError, ValueError):
        return False  # stdout is closed or no file at all: there never was a reader to lose
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poller.poll(0))


def _speaks_unicode() -> bool:
    return sys.stdout is not None and (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


def _write(stream: TextIO | None, text: str) -> None:
    if stream is None:  # started with the descriptor closed
        return
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError as error:
        _point_nowhere(stream)
        raise OutputClosed from error
    except OSError as error:
        _point_nowhere(stream)
        raise Leave(
            ExitCode.ENVIRONMENT, f"the output could not be written ({error.strerror}): mend where it goes."
        ) from error


def _point_nowhere(stream: TextIO) -> None:
    """Send what the stream still holds to nowhere, or the interpreter complains of it as it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
