"""Where output goes: pipes that are closed, terminals without colours, encodings without marks."""

import os
import subprocess
import time

import pytest

from subagent_server.cli.console.terminal import wrapped
from tests.cli.command import Cli
from tests.helpers.forked import PROGRAM


@pytest.mark.parametrize(
    "words",
    [
        ["ls"],
        ["ls", "--json"],
        ["show", "@last"],
        ["logs", "@last"],
        ["export", "@last", "-o", "-"],
        ["--help"],
    ],
)
def test_a_closed_pipe_ends_the_command_quietly(cli: Cli, words: list[str]) -> None:
    cli.completed("aaaaaa", "A long result. " * 20_000)
    cli("show", "@last")  # so that there is a log
    reading, writing = os.pipe()
    os.close(reading)
    with cli.start(*words, stdout=writing) as command:
        os.close(writing)
        assert command.end() == (0, "", "")


def test_the_time_to_break_a_long_line_grows_with_its_length_alone() -> None:
    began = time.process_time()
    lines = wrapped("漢" * 100_000, 71)
    assert {len(line) for line in lines} == {35, 5} and time.process_time() - began < 20, "it took a minute"


@pytest.mark.parametrize("words", [["ls"], ["export", "@last", "-o", "-"]])
def test_a_full_disk_exits_with_6_in_one_line(cli: Cli, words: list[str]) -> None:
    cli.completed("aaaaaa")
    with open("/dev/full", "wb") as full, cli.start(*words, stdout=full) as command:  # noqa: PTH123 - a device
        code, _, said = command.end()
    assert code == 6
    why = "the output could not be written (No space left on device)"
    assert said == f"subagent: {why}: free space, or name another file.\n"


def test_colour_is_only_for_terminals_that_want_it(cli: Cli) -> None:
    cli.completed("aaaaaa")
    assert "\x1b[32m✔ completed\x1b[0m" in cli.raw_screen("ls", TERM="xterm")
    assert "\x1b" not in cli.raw_screen("ls", NO_COLOR="1")
    assert "\x1b" not in cli.raw_screen("ls", TERM="dumb")
    assert "\x1b" not in cli("ls").stdout


def test_an_encoding_without_the_marks_gets_escapes_and_no_traceback(cli: Cli) -> None:
    cli.completed("aaaaaa", "Größe 漢字 😀")
    environment = {"PYTHONUTF8": "0", "PYTHONIOENCODING": "latin-1"}  # which has some of the letters
    assert cli("ls", env=environment).stdout.splitlines()[1].startswith("\\u2714 completed")
    assert (
        '"Gr\\u00f6\\u00dfe \\u6f22\\u5b57 \\ud83d\\ude00"'
        in cli("show", "@last", "--json", env=environment).stdout
    )


@pytest.mark.parametrize("words", ["export -o - @last >&-", "serve <&-"])
def test_a_closed_stream_is_not_an_error(cli: Cli, words: str) -> None:
    cli.completed("aaaaaa")
    line = f"{' '.join(PROGRAM)} {words}"
    done = subprocess.run(
        ["bash", "-c", line], cwd=cli.home, env=cli.environment, capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
