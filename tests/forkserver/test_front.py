"""A front ends as its fork, and the fork ends as a fresh interpreter does."""

import os
import signal
import subprocess
import sys

import pytest

from tests.forkserver.tiny import TinyPlace
from tests.helpers.processes import REPOSITORY
from tests.helpers.world import BOUND

FRONT = """
import sys
sys.path.insert(0, sys.argv.pop(1))
directory = sys.argv.pop(1)
if directory:
    from subagent_server.forkserver.front import stand_for_fork
    stand_for_fork("end", directory)
    print("not forked")
from tests.forkserver.tiny import end
sys.exit(end(None, sys.argv[1:]))
"""


def started(directory: object, *words: str, tail: str = "", **environment: str) -> "subprocess.Popen[str]":
    """Start a program, forked if there is a directory."""
    command = [sys.executable, "-c", FRONT, str(REPOSITORY), str(directory), *words]
    return subprocess.Popen(
        ["sh", "-c", f'exec "$@" {tail}', "sh", *command],
        env={**os.environ, "PYTHONUNBUFFERED": "", **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )


def ended(directory: object, *words: str, tail: str = "", **environment: str) -> tuple[int, str, str]:
    """Return exit code, stdout and the last line of stderr of a program."""
    with started(directory, *words, tail=tail, **environment) as process:
        out, err = process.communicate(timeout=BOUND)
    return process.returncode, out, "".join(err.splitlines()[-1:])


@pytest.mark.parametrize(
    ("how", "code"),
    [("return", 3), ("text", 1), ("raise", 1), ("kill", -9), ("print", 3), ("exit handler", 3)],
)
def test_a_front_ends_as_a_plain_program_does(place: TinyPlace, how: str, code: int) -> None:
    place.start()
    forked = ended(place.directory, how)
    assert forked == ended("", how)
    assert forked[0] == code


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_front_as_it_ends_a_plain_program(place: TinyPlace, number: signal.Signals) -> None:
    place.start()
    ends = []
    for directory in (place.directory, ""):
        with started(directory, "wait") as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            process.send_signal(number)
            assert process.wait(BOUND) == -number
            assert process.stderr is not None
            ends.append(process.stderr.read().splitlines()[-1:])
    assert ends[0] == ends[1] == (["KeyboardInterrupt"] if number == signal.SIGINT else [])


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("tail", ["> /dev/full", ">&-", "2>&-", "<&-"])
def test_a_stream_that_cannot_be_used_ends_a_front_as_a_plain_program(
    place: TinyPlace, tail: str, unbuffered: str
) -> None:
    place.start()
    forked, plain = (
        ended(directory, "print", tail=tail, PYTHONUNBUFFERED=unbuffered)
        for directory in (place.directory, "")
    )
    assert forked[:2] == plain[:2]
    full = 1 if unbuffered else 120
    assert forked[0] == (full if tail == "> /dev/full" else 3)


def test_a_command_without_a_zygote_runs_where_it_was_started(place: TinyPlace) -> None:
    assert ended(place.directory, "print") == (3, "not forked\nprinted\n", "")
