"""A command that is forked is what a fresh process with the same words would be."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from subagent_server.run.store import RunStore
from tests.helpers.forking import fork_command, is_for_forking, run_forked
from tests.helpers.wait import wait_for

BOUND = 120.0


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment of its own, with an empty runs root."""
    RunStore(tmp_path / "runs").make_root()
    named = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LANG": "C.UTF-8"}
    return {**named, "SUBAGENT_RUNS": str(tmp_path / "runs"), "SUBAGENT_WARM": "0"}


@pytest.mark.parametrize(
    "words",
    [
        ["ls", "--json"],
        ["show", "--", "\udcff"],
        ["--version"],
        ["reply", "x"],
        ["trust", "--help"],
        ["run", "nobody", "-"],
        ["schema", "meta"],
    ],
    ids=lambda words: words[0],
)
def test_it_prints_and_exits_as_a_fresh_one(
    tmp_path: Path, environment: Mapping[str, str], words: list[str]
) -> None:
    forked = run_forked(words, cwd=tmp_path, environment=environment, stdin=b"Do it.\n", seconds=BOUND)
    fresh = subprocess.run(
        [sys.executable, "-m", "subagent_server", *words],
        cwd=tmp_path,
        env=environment,
        input=b"Do it.\n",
        capture_output=True,
        timeout=BOUND,
        check=False,
    )
    expected = (fresh.returncode, fresh.stdout, fresh.stderr)
    assert (forked.returncode, forked.stdout, forked.stderr) == expected


def test_it_has_the_umask_of_its_starter(tmp_path: Path, environment: Mapping[str, str]) -> None:
    before = os.umask(0o027)
    try:
        done = run_forked(["init", "codex", "--yes"], cwd=tmp_path, environment=environment, seconds=BOUND)
    finally:
        os.umask(before)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / ".codex").stat().st_mode & 0o777 == 0o750


def test_a_signal_ends_it_and_its_code_says_so(tmp_path: Path, environment: Mapping[str, str]) -> None:
    reading, writing = os.pipe()
    with open(os.devnull, "r+b") as nothing:  # noqa: PTH123 - a device
        streams = (reading, nothing.fileno(), nothing.fileno())
        command = fork_command(["run", "nobody", "-"], streams, cwd=tmp_path, environment=environment)
    os.close(reading)
    try:
        wait_for(lambda: Path(f"/proc/{command.pid}").exists(), BOUND, "the command")
        os.kill(command.pid, signal.SIGTERM)
        assert command.wait(BOUND) == -signal.SIGTERM
    finally:
        os.close(writing)


def test_a_command_that_does_not_end_is_killed(tmp_path: Path, environment: Mapping[str, str]) -> None:
    reading, writing = os.pipe()
    with open(os.devnull, "r+b") as nothing:  # noqa: PTH123 - a device
        streams = (reading, nothing.fileno(), nothing.fileno())
        command = fork_command(["run", "nobody", "-"], streams, cwd=tmp_path, environment=environment)
    os.close(reading)
    try:
        with pytest.raises(TimeoutError):
            command.wait(0.05)
        wait_for(lambda: not Path(f"/proc/{command.pid}").exists(), BOUND, "its end")
    finally:
        os.close(writing)


@pytest.mark.parametrize(
    "odd",
    [
        {"PYTHONIOENCODING": "ascii"},
        {"LANG": "de_DE.ISO-8859-1"},
        {"SUBAGENT_RUN_ID": "x"},
        {"LD_PRELOAD": "x"},
    ],
    ids=lambda odd: next(iter(odd)),
)
def test_an_environment_that_asks_for_another_process_gets_a_fresh_one(odd: dict[str, str]) -> None:
    assert is_for_forking(["ls"], {"LANG": "C.UTF-8", "PYTHONUTF8": "1"})
    assert not is_for_forking(["ls"], {"LANG": "C.UTF-8", **odd})
    assert not is_for_forking(["serve"], {})
