"""A machine without room for a process or a thread: one sentence, and the right code."""

import resource
import subprocess
from functools import partial

import pytest

from tests.helpers.forked import PROGRAM, run
from tests.helpers.ordinary_user import user
from tests.helpers.scale import sampled
from tests.helpers.turns import says, shell
from tests.helpers.world import BOUND, World


def run_within(
    world: World, limit: int, most: int, *options: str
) -> tuple["subprocess.CompletedProcess[bytes]", str]:
    """Run an agent from a process that has a limit, plainly; return how the command ended, and its run."""
    known = {*world.store.run_ids()}
    done = run(
        [*PROGRAM, "run", *options, "worker", "Do it."],
        {**world.environment, "SUBAGENT_WARM": "0"},
        cwd=world.work,
        seconds=BOUND,
        enter=partial(resource.setrlimit, limit, (most, most)),
    )
    assert b"Traceback" not in done.stderr, done
    (run_id,) = {*world.store.run_ids()} - known
    return done, run_id


def refuse_each_process(world: World) -> None:
    """Run an agent in processes that may start neither a process nor a thread."""
    world.agent_saying(says("Done."))
    for options in ([], ["--detach"]):
        done, run_id = run_within(world, resource.RLIMIT_NPROC, 1, *options)
        assert done.returncode == 6 and b"No process or thread can be started" in done.stderr, done
        assert world.failed(run_id)[0] == "launch_failed"


def test_a_command_that_may_start_no_process_and_no_thread_exits_with_6_and_says_so() -> None:
    with user() as somebody:
        somebody.play(refuse_each_process)


def run_with_few_processes(world: World) -> None:
    """Run an agent again and again in processes that may start a few more each time."""
    world.agent_saying(shell("true"), says("Done."))
    for limit in sampled(range(4, 20, 2), 2):
        done, run_id = run_within(world, resource.RLIMIT_NPROC, limit)
        error = world.ended(run_id).error
        assert done.returncode in (0, 1, 6), done
        assert error is None or "ulimit -u" in error.message, (limit, error)


def test_with_few_processes_a_run_completes_or_names_their_limit() -> None:
    with user() as somebody:
        somebody.play(run_with_few_processes)


def test_a_worker_that_may_open_too_few_files_says_so_before_it_begins(world: World) -> None:
    world.agent_saying(says("Done."))
    done, run_id = run_within(world, resource.RLIMIT_NOFILE, 17, "--detach")
    assert done.returncode == 0, done
    code, message = world.failed(run_id)
    assert code == "launch_failed" and "ulimit -n" in message
    assert (world.paths(run_id).directory / "worker.out").read_text(encoding="utf-8") == ""


@pytest.mark.parametrize("files", sampled((24, 40), 1))
def test_a_run_that_may_open_too_few_files_for_its_box_names_that_limit(world: World, files: int) -> None:
    world.agent_saying(shell("echo hi > x"), says("Done."), sandbox="bwrap")
    _, run_id = run_within(world, resource.RLIMIT_NOFILE, files)
    error = world.ended(run_id).error
    assert error is None or (error.code != "config" and "ulimit -n" in error.message)
