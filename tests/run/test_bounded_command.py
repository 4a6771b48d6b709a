"""A command of the user has a bound, and leaves no process behind."""

import os
import sys
from pathlib import Path

import pytest

from subagent_server.run import bounded_command
from tests.helpers.wait import wait_for

pytestmark = pytest.mark.process

STAY = """
import os, sys, time
for name in ("child", "grandchild"):
    if os.fork():
        break
    os.setsid()
with open(f"{sys.argv[1]}/{os.getpid()}", "w"):
    pass
time.sleep(3600)
"""


def test_a_command_that_does_not_end_in_time_is_killed_with_all_that_it_has_started(tmp_path: Path) -> None:
    words = [sys.executable, "-c", STAY, str(tmp_path)]
    started = bounded_command.start(words, 2, os.environ, b"", with_starter=True)
    wait_for(lambda: len(list(tmp_path.iterdir())) == 3, 30, "three processes")
    assert started.wait(30) == bounded_command.EXIT_LATE
    assert not [file.name for file in tmp_path.iterdir() if Path("/proc", file.name).exists()]


def test_a_command_that_ends_gives_its_code_and_its_input_was_data(tmp_path: Path) -> None:
    code = "import sys; sys.exit(sys.stdin.read() != '$(true)')"
    assert (
        bounded_command.start(
            [sys.executable, "-c", code], 30, os.environ, b"$(true)", with_starter=True
        ).wait(30)
        == 0
    )
    missing = bounded_command.start([str(tmp_path / "no")], 30, os.environ, b"", with_starter=True)
    assert missing.wait(30) == bounded_command.EXIT_NOT_STARTED
