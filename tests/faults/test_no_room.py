"""A machine without room for a process, a thread or an open file: one sentence, and the right code."""

import os
import resource
import subprocess
from pathlib import Path

from tests.helpers.ordinary_user import user
from tests.helpers.raw_server import HELLO, READY, tool_call
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
    open_no_more_than(1, world.worker(run_id).pid)
    world.reply(run_id, "yes")
    assert world.failed(run_id)[0] == "storage"
    world.gone(run_id)
    assert "Traceback" not in world.paths(run_id).worker_out.path.read_text(encoding="utf-8")


def test_a_server_that_may_open_no_more_files_says_so_and_goes_on_once_it_may(world: World) -> None:
    with world.raw_server() as server:
        server.say(HELLO)
        server.answer_to("hello")
        server.say(READY)
        world.store.make_root()
        before = open_no_more_than(1, server.pid)
        server.say(tool_call(1, "list_runs"))
        answer = server.answer_to(1)["result"]
        assert answer["isError"] and "`ulimit -n`" in answer["content"][0]["text"]
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, before)
        server.say(tool_call(2, "list_runs"))
        assert not server.answer_to(2)["result"].get("isError")


def open_no_more_than(count: int, pid: int) -> tuple[int, int]:
    """Let a process open at most so many files more than it has open; return its limits from before."""
    opened = max(int(link.name) for link in Path(f"/proc/{pid}/fd").iterdir())
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (opened + count, before[1]))
    return before
