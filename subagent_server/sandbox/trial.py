"""One trial start of a box: whether it works here, before anything depends on it."""

import subprocess
from contextlib import suppress

from subagent_server.sandbox.box import Box
from subagent_server.sandbox.check import check_box
from subagent_server.sandbox.refusal import BoxRefused

_SECONDS = 30.0
_MOST_WORDS = 4096


def try_box(box: Box) -> None:
    """Start a program in a box of its own, look at the walls from outside, and end it. Blocking.

    Raises:
        BoxRefused: the box cannot be made here, or is not closed; with bubblewrap's own line.
    """
    say_and_wait = ["sh", "-c", "echo ready; read line"]
    try:
        process = box.start(
            say_and_wait, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
        )
    except OSError as error:
        raise not_started(error) from error
    try:
        if process.stdout is not None and process.stdout.read(1):
            check_box(process.pid, box)
        else:
            raise BoxRefused(last_words(process))
    finally:
        process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_SECONDS)
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def not_started(error: OSError) -> BoxRefused:
    """Return the refusal of a bubblewrap that the system would not start."""
    return BoxRefused(f"bubblewrap could not be started ({error.strerror})")


def last_words(process: "subprocess.Popen[bytes]") -> str:
    """Return the line in which a bubblewrap that has ended said why."""
    words = b"" if process.stderr is None else process.stderr.read(_MOST_WORDS)
    line = words.decode("utf-8", "replace").strip().partition("\n")[0]
    return line or "bubblewrap ended at once, without a word"
