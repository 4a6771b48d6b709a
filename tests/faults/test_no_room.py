"""A machine without room for a process or a thread: one sentence, and the right code."""

import os
import subprocess

import pytest

from tests.helpers.forked import PROGRAM
from tests.helpers.ordinary_user import user
from tests.helpers.scale import sampled
from tests.helpers.turns import says, shell
from tests.helpers.world import BOUND, World

_NO_PROCESS = ["bash", "-c", 'ulimit -u 1 && exec "$@"', "bash"]


def refuse_each_process(world: World) -> None:
    """Run an agent in processes that may start neither a process nor a thread."""
    world.agent()
    world.play(says("Done."))
    environment = {**os.environ, **world.environment, "SUBAGENT_WARM": "0"}
    known: set[str] = set()
    for options in ([], ["--detach"]):
        command = [*_NO_PROCESS, *PROGRAM, "run", *options, "worker", "Do it."]
        done = subprocess.run(
            command, cwd=world.work, env=environment, capture_output=True, text=True, timeout=BOUND
        )
        assert "Traceback" not in done.stderr
        assert done.returncode == 6 and "No process or thread can be started" in done.stderr, done
        (run_id,) = {*world.store.run_ids()} - known
        known.add(run_id)
        assert world.failed(run_id)[0] == "launch_failed"


def test_a_command_that_may_start_no_process_and_no_thread_exits_with_6_and_says_so() -> None:
    with user() as somebody:
        somebody.play(refuse_each_process)


def run_with_few_processes(world: World) -> None:
    """Run an agent again and again in processes that may start a few more each time."""
    world.agent()
    world.play(shell("true"), says("Done."))
    environment = {**os.environ, **world.environment, "SUBAGENT_WARM": "0"}
    known: set[str] = set()
    for limit in sampled(range(4, 20, 2), 2):
        command = [
            "bash",
            "-c",
            f'ulimit -u {limit} && exec "$@"',
            "bash",
            *PROGRAM,
            "run",
            "worker",
            "Do it.",
        ]
        done = subprocess.run(
            command, cwd=world.work, env=environment, capture_output=True, text=True, timeout=BOUND
        )
        (run_id,) = {*world.store.run_ids()} - known
        known.add(run_id)
        error = world.ended(run_id).error
        assert "Traceback" not in done.stderr and done.returncode in (0, 1, 6), done
        assert error is None or "ulimit -u" in error.message, (limit, error)


def test_with_few_processes_a_run_completes_or_names_their_limit() -> None:
    with user() as somebody:
        somebody.play(run_with_few_processes)


def test_a_worker_that_may_open_too_few_files_says_so_before_it_begins(world: World) -> None:
    world.agent()
    world.play(says("Done."))
    few = ["bash", "-c", 'ulimit -n 17 && exec "$@"', "bash"]
    environment = {**os.environ, **world.environment, "SUBAGENT_WARM": "0"}
    command = [*few, *PROGRAM, "run", "--detach", "worker", "Do it."]
    done = subprocess.run(
        command, cwd=world.work, env=environment, capture_output=True, text=True, timeout=BOUND
    )
    assert done.returncode == 0, done
    (run_id,) = world.store.run_ids()
    world.ended(run_id)
    assert world.failed(run_id)[0] == "launch_failed"
    assert "ulimit -n" in world.failed(run_id)[1]
    assert (world.store.paths.run(run_id).directory / "worker.out").read_text(encoding="utf-8") == ""


@pytest.mark.parametrize("files", [24, 40])
def test_a_run_that_may_open_too_few_files_for_its_box_names_that_limit(world: World, files: int) -> None:
    world.agent(sandbox="bwrap")
    world.play(shell("echo hi > x"), says("Done."))
    command = ["bash", "-c", f'ulimit -n {files} && exec "$@"', "bash", *PROGRAM, "run", "worker", "Do it."]
    environment = {**os.environ, **world.environment, "SUBAGENT_WARM": "0"}
    subprocess.run(command, cwd=world.work, env=environment, capture_output=True, timeout=BOUND)
    (run_id,) = world.store.run_ids()
    meta = world.ended(run_id)
    if meta.error is not None:
        assert meta.error.code != "config" and "ulimit -n" in meta.error.message
