"""Where output goes: pipes that are closed, terminals without colours, encodings without marks."""

import os
import pty
import subprocess
from collections.abc import Mapping

import pytest

from tests.cli.command import Cli, hear
from tests.helpers.forked import PROGRAM


def on_a_terminal(cli: Cli, *words: str, env: Mapping[str, str] | None = None) -> str:
    """Return what a command writes to stdout when that is a terminal."""
    outer, inner = pty.openpty()
    try:
        environment = {**cli.environment, "TERM": "xterm", **(env or {})}
        subprocess.run(
            [*PROGRAM, *words], cwd=cli.home, env=environment, stdout=inner, check=True, timeout=30
        )
        os.write(inner, b"<end>")
        return hear(outer, "<end>")
    finally:
        os.close(outer)
        os.close(inner)


@pytest.mark.parametrize(
    "words", [["ls"], ["ls", "--json"], ["show", "@last"], ["logs", "@last"], ["--help"]]
)
def test_a_closed_pipe_ends_the_command_quietly(cli: Cli, words: list[str]) -> None:
    cli.completed("aaaaaa", "A long result. " * 20_000)
    cli("show", "@last")  # so that there is a log
    reading, writing = os.pipe()
    os.close(reading)
    with cli.start(*words, stdout=writing) as command:
        os.close(writing)
        assert command.end() == (0, "", "")


def test_a_pipe_to_head_is_quiet(cli: Cli) -> None:
    for number in range(30):
        cli.completed(f"aaaa{number:02d}")
    line = f"set -o pipefail; {' '.join(PROGRAM)} ls -a | head -1"
    done = subprocess.run(
        ["bash", "-c", line], cwd=cli.home, env=cli.environment, capture_output=True, timeout=60, check=True
    )
    assert done.stdout.startswith(b"STATUS") and done.stderr == b""


def test_a_full_disk_exits_with_6_in_one_line(cli: Cli) -> None:
    cli.completed("aaaaaa")
    with open("/dev/full", "wb") as full, cli.start("ls", stdout=full) as command:  # noqa: PTH123 - a device
        code, _, said = command.end()
    assert code == 6
    why = "the output could not be written (No space left on device)"
    assert said == f"subagent: {why}: free space, or name another file.\n"


def test_colour_is_only_for_terminals_that_want_it(cli: Cli) -> None:
    cli.completed("aaaaaa")
    assert "\x1b[32m✔ completed\x1b[0m" in on_a_terminal(cli, "ls", env={"TERM": "xterm"})
    assert "\x1b" not in on_a_terminal(cli, "ls", env={"NO_COLOR": "1"})
    assert "\x1b" not in on_a_terminal(cli, "ls", env={"TERM": "dumb"})
    assert "\x1b" not in cli("ls").stdout


def test_a_result_is_escaped_on_a_terminal(cli: Cli) -> None:
    cli.completed("aaaaaa", "red \x1b[31malert\x1b[0m")
    assert "red \\x1b[31malert" in on_a_terminal(cli, "show", "@last", env={"NO_COLOR": "1"})


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_an_encoding_without_the_marks_gets_escapes_and_no_traceback(cli: Cli, encoding: str) -> None:
    cli.completed("aaaaaa", "Größe 漢字 😀")
    environment = {"PYTHONUTF8": "0", "PYTHONIOENCODING": encoding}
    assert cli("ls", env=environment).stdout.splitlines()[1].startswith("\\u2714 completed")
    assert (
        '"Gr\\u00f6\\u00dfe \\u6f22\\u5b57 \\ud83d\\ude00"'
        in cli("show", "@last", "--json", env=environment).stdout
    )


def test_a_closed_stdout_is_not_an_error(cli: Cli) -> None:
    cli.completed("aaaaaa")
    line = f"{' '.join(PROGRAM)} ls >&-"
    done = subprocess.run(
        ["bash", "-c", line], cwd=cli.home, env=cli.environment, capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
