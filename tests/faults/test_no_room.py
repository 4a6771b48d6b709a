"""A machine without room for a process, a thread or an open file: one sentence, and the right code."""

import os
import resource
import subprocess
from pathlib import Path

from tests.helpers.ordinary_user import user
from tests.helpers.turns import asks, says
from tests.helpers.world import BOUND, PROGRAM, World

_NO_PROCESS = ["bash", "-c", 'ulimit -u 1 && exec "$@"', "bash"]


def run_without_processes(world: World) -> None:
    """Run an agent in a process that may start neither a process nor a thread."""
    world.agent()
    world.play(says("Done."))
    command = [*_NO_PROCESS, *PROGRAM, "run", "worker", "Do it."]
    environment = {**os.environ, **world.environment, "SUBAGENT_WARM": "0"}
    done = subprocess.run(
        command, cwd=world.work, env=environment, capture_output=True, text=True, timeout=BOUND
    )
    assert "Traceback" not in done.stderr
    assert done.returncode == 6 and "No process or thread can be started" in done.stderr, done
    (run_id,) = world.store.run_ids()
    assert world.failed(run_id)[0] == "launch_failed"


def test_a_command_that_may_start_no_process_and_no_thread_exits_with_6_and_says_so() -> None:
    with user() as somebody:
        somebody.play(run_without_processes)


def test_a_worker_that_may_open_no_more_files_ends_its_run_with_storage(world: World) -> None:
    world.agent()
    world.play(asks("Go on?"), says("Done."))
    run_id = world.start()
    world.asking(run_id)
    worker = world.worker(run_id).pid
    opened = [int(link.name) for link in Path(f"/proc/{worker}/fd").iterdir()]
    hard = resource.prlimit(worker, resource.RLIMIT_NOFILE)[1]
    resource.prlimit(worker, resource.RLIMIT_NOFILE, (max(opened) + 1, hard))
    world.reply(run_id, "yes")
    assert world.failed(run_id)[0] == "storage"
    world.gone(run_id)
    assert "Traceback" not in world.paths(run_id).worker_out.path.read_text(encoding="utf-8")
