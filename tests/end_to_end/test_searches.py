"""`grep` and `glob` of a run, from the call of its model to the end of ripgrep."""

import signal
from pathlib import Path

import pytest

from subagent_server.run import processes
from tests.helpers.turns import call, calls, says, tool_results, use
from tests.helpers.wait import wait_for
from tests.helpers.world import BOUND, World
from tests.toolbox.trap import SLOW_PATTERN, set_trap


def searching(world: World, run_id: str) -> list[processes.Identity]:
    """Return the ripgrep processes below the worker of a run."""
    below = processes.descendants([world.worker(run_id).pid])
    return [identity for identity in below if _is_ripgrep(identity.pid)]


def _is_ripgrep(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/exe").readlink().name == "rg"
    except OSError:
        return False


def test_a_run_does_not_find_the_runs_of_its_server(world: World) -> None:
    world.agent(cwd=str(world.home), prompt="Nobody needs the word mirabelle.")
    (world.work / "notes.md").write_text("mirabelle\n", encoding="utf-8")
    uses = [
        use("grep", pattern="mirabelle", includeIgnored=True),
        use("glob", pattern="**/*.json", includeIgnored=True),
        use("grep", pattern="mirabelle", path="runs"),
    ]
    simulator = world.play(calls(*uses), says("Done."))
    world.completed(world.start("Find the word mirabelle."))
    grep, glob, refused = tool_results(simulator.requests[1].body)
    assert grep.split("\n") == ["agents/worker.md", "work/notes.md"]
    assert "runs/" not in glob
    assert "holds the runs of the server" in refused


@pytest.mark.parametrize("end", ["worker killed", "stopped"])
def test_the_end_of_a_run_ends_its_search(world: World, end: str) -> None:
    set_trap(world.work)
    world.agent()
    world.play(call("grep", pattern=SLOW_PATTERN), says("Done."))
    run_id = world.start()
    found = wait_for(lambda: searching(world, run_id), BOUND, "the start of ripgrep")
    if end == "stopped":
        world.stop(run_id)
    else:
        assert processes.send_signal(world.worker(run_id), signal.SIGKILL)
    wait_for(lambda: not any(map(processes.is_alive, found)), 15, "the end of ripgrep")
    world.gone(run_id)
