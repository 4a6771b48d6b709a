"""One trial start of a box: whether it works here, before anything depends on it."""

import errno
import os
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from subagent_server.host.no_room import lack_of_room
from subagent_server.sandbox.box import Box, Rules, build_box
from subagent_server.sandbox.check import check_box
from subagent_server.sandbox.landlock import version
from subagent_server.sandbox.limits import limits_as_text
from subagent_server.sandbox.refusal import BoxRefused

_SECONDS = 30.0
_MOST_WORDS = 4096
_PASSING = (
    *("Can't find source path", "Can't get type of source", "Can't mkdir", "Can't create file"),
    *("Resource temporarily unavailable", "Cannot allocate memory", "Too many open files", "Interrupted"),
)
"""A path went between the look and the start, or the machine had no room."""
_LAST_EXIT_CODE = 128
_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN})
_PROVEN: set[Path] = set()
"""The bubblewraps that have made a closed box for this process, or for the one that it was forked from."""


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
            raise ended_early(process)
    finally:
        process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_SECONDS)
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def rehearse_box(environment: Mapping[str, str]) -> None:
    """Try boxes here once, so that this process and its forks need not wait before they rely on one."""
    with suppress(BoxRefused, OSError):
        _PROVEN.add(_tried_elsewhere(environment).program)


def is_proven(program: Path) -> bool:
    """Whether this bubblewrap has made a closed box here. Each box is looked at all the same."""
    return program in _PROVEN


def can_box(environment: Mapping[str, str]) -> bool:
    """Whether boxes work here. Some 50 ms for the first one of a process that was not rehearsed."""
    if not _PROVEN:
        rehearse_box(environment)
    return bool(_PROVEN)


def outlook(environment: Mapping[str, str]) -> str:
    """Return whether boxes work here, by one trial start in an empty directory, for people."""
    try:
        box = _tried_elsewhere(environment)
    except BoxRefused as refusal:
        return f"none, so programs of runs have all rights of the user: {refusal.reason}"
    wall = f"Landlock {version()} is a second wall" if box.walled else "this kernel has no Landlock"
    return f"{box.program} works ({limits_as_text(box.limits)}; {wall})"


def _tried_elsewhere(environment: Mapping[str, str]) -> Box:
    """Return a box that has worked in an empty directory. Raises BoxRefused."""
    with tempfile.TemporaryDirectory(prefix="subagent-box-") as directory:
        place = Path(os.path.realpath(directory)) / "cwd"
        place.mkdir()
        box = build_box(Rules(cwd=place, environment=environment, network=False))
        try_box(box)
        return box


def not_started(error: OSError) -> BoxRefused:
    """Return the refusal of a bubblewrap that the system would not start."""
    why = (lack_of_room(error) or error.strerror or str(error)).rstrip(".")
    return BoxRefused(f"bubblewrap could not be started ({why})", passes=error.errno in _NO_ROOM)


def ended_early(process: "subprocess.Popen[bytes]") -> BoxRefused:
    """Return the refusal of a bubblewrap that has ended, with its own line."""
    words = b"" if process.stderr is None else process.stderr.read(_MOST_WORDS)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_SECONDS)
    return refusal_of(words.decode("utf-8", "replace"), process.returncode)


def refusal_of(words: str, exit_code: int | None) -> BoxRefused:
    """Return the refusal in the first line of what a bubblewrap said.

    A negative exit code is the signal that ended it; one above 128 the signal that ended its inner process.
    """
    line = words.strip().partition("\n")[0]
    is_killed = not line and exit_code is not None and not 0 <= exit_code <= _LAST_EXIT_CODE
    passes = is_killed or any(sign in line for sign in _PASSING)
    return BoxRefused(line or "bubblewrap ended at once, without a word", passes=passes)
