"""Landlock: what a box may write is bounded a second time, by inode."""

import os
import socket
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from subagent_server.sandbox import landlock
from subagent_server.sandbox.box import Box, Rules, build_box
from tests.helpers import bubblewrap

pytestmark = pytest.mark.skipif(not landlock.version(), reason="this kernel has no Landlock")


@pytest.fixture
def box(tmp_path: Path) -> Box:
    """A box with a writable directory `project`, and a network."""
    project = tmp_path.resolve() / "project"
    project.mkdir()
    return build_box(Rules(cwd=project, environment={**os.environ, **bubblewrap.settings()}))


def done(box: Box, script: str, *more: str) -> str:
    """Return what a shell in the box says."""
    process = box.start(
        ["sh", "-c", script],
        more=more,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
    )
    said, _ = process.communicate(timeout=60)
    return str(said.decode())


def test_a_writable_mount_that_was_not_asked_for_stays_closed(box: Box, tmp_path: Path) -> None:
    other = tmp_path.resolve() / "other"
    other.mkdir()
    (other / "file").touch()
    said = done(
        box,
        f"cd /elsewhere; echo x > file; mkdir d; rm file; mv file {box.start_directory}; echo over",
        *("--bind", str(other), "/elsewhere"),
    )
    assert said.count("Permission denied") + said.count("cannot") >= 5 and said.endswith("over\n"), said
    assert [path.name for path in other.iterdir()] == ["file"] and not (other / "file").read_text(
        encoding="utf-8"
    )


def test_a_program_that_is_not_there_is_named(box: Box) -> None:
    process = box.start(["no-such-program"], stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    _, said = process.communicate(timeout=60)
    assert said == b"no-such-program could not be started: No such file or directory\n"


def test_a_program_whose_reader_is_gone_ends_without_a_complaint(box: Box) -> None:
    assert done(box, "yes | head -n 1") == "y\n"


def test_ordinary_writing_goes_on(box: Box) -> None:
    said = done(
        box,
        "mkdir -p a b /tmp/c; echo 1 > a/f; mv a/f b/f; ln b/f b/g; ln -s f b/h; truncate -s 0 b/f;"
        "mv b/g /tmp/c/; echo x > /dev/null; echo x > /dev/shm/y; echo 400 > /proc/self/oom_score_adj;"
        "rm -r a b; mkfifo p; ls",
    )
    assert said == "p\n"


def test_abstract_sockets_of_the_host_are_not_reached_with_a_network(box: Box) -> None:
    if landlock.version() < 6:
        pytest.skip("Landlock of this kernel knows no scopes")
    code = "import socket\nwith socket.socket(socket.AF_UNIX) as s:\n    s.connect(chr(0) + 'subagent-test')"

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0subagent-test")
        listener.listen()
        assert "PermissionError" in done(box, f'{landlock.interpreter()} -I -c "{code}"')


def test_a_box_of_an_older_kernel_works_without_it(box: Box) -> None:

    assert done(replace(box, walled=False), "echo works") == "works\n"
