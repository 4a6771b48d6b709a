"""Runs on nodes, by Slurm and by `ssh`: they ask, end, stop and die as they do here."""

import json
import os
import signal
from contextlib import suppress
from pathlib import Path

from subagent_server.run.states import Status
from tests.helpers.repositories import make_repository
from tests.helpers.turns import asks, call, says, shell
from tests.helpers.wait import wait_for
from tests.helpers.world import API_KEY, BOUND, World
from tests.nodes.conftest import holds, lost, over


def command_lines() -> dict[int, str]:
    """Return the command lines of all processes of this user, those on nodes included."""
    found = {}
    for each in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"\nUid:\t{os.getuid()}\t" in (each / "status").read_text(encoding="utf-8", errors="replace"):
                found[int(each.name)] = (each / "cmdline").read_bytes().decode("utf-8", "replace")
    return found


def shims(run_id: str) -> list[int]:
    """Return the processes that are the shim of a run, or its heart."""
    return [pid for pid, line in command_lines().items() if run_id in line and "shim.py" in line]


def test_a_run_on_a_node_asks_is_answered_and_ends(world: World, home: Path) -> None:
    world.agent_saying(asks("Which colour?"), says("Blue it is."))
    run_id = world.start_asking("The secret word is quagga-77.")
    node = world.look(run_id).node
    assert node in ("n1", "n2", "n3", "h1")
    assert f"its processes live on {node}" in world.cli("show", run_id).stdout
    assert f"on {node}" in world.cli("ls").stdout
    for secret in (API_KEY, "quagga-77"):
        assert holds(home, secret) == [] and secret not in str(command_lines())
    assert holds(world.runs, API_KEY) == []
    world.reply(run_id, "blue")
    assert world.completed(run_id) == "Blue it is."
    over(world, run_id)


def test_the_doctor_hears_of_every_node(world: World) -> None:
    done = world.cli("doctor", "--nodes")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert {line.partition(":")[0] for line in lines} in ({"n1", "n2", "n3"}, {"h1"})
    assert all("Python 3." in line and "clock " in line and "sandbox " in line for line in lines)
    assert not list(world.runs.glob(".check-*"))


def test_code_mode_works_in_a_worktree_on_a_node(world: World) -> None:
    make_repository(world.work)
    program = call("execute_python_code", code="print(6 * 7)", executionTimeout=60)
    world.agent_saying(program, says("Done."), isolation="worktree", codeMode={"enabled": True})
    run_id = world.completed_run()
    assert "42" in str(world.events(run_id, "tool_result"))
    assert world.meta(run_id).worktree is not None
    over(world, run_id)


def test_a_program_of_another_make_works_in_a_box_on_a_node(world: World) -> None:
    world.agent(
        prompt="", runner="command", command="sh", args=["-c", "cat > made; ls $HOME"], sandbox="bwrap"
    )
    (world.home / "canary").touch()
    run_id = world.start("Do it.")
    assert "canary" not in world.completed(run_id)
    assert (world.work / "made").read_text(encoding="utf-8") == "Do it."
    (started,) = world.events(run_id, "run_started")
    assert started["sandbox"].startswith("bwrap (")
    over(world, run_id)


def test_a_stop_ends_the_tree_on_its_node(world: World) -> None:
    world.agent_saying(shell("touch begun; sleep 1000"), says("Done."))
    run_id = world.start()
    wait_for((world.work / "begun").exists, BOUND, "the command")
    assert world.stop(run_id).meta.status is Status.STOPPED
    over(world, run_id)
    assert json.loads(world.paths(run_id).exit.read(4096))["treeGone"] is True


def test_the_worker_of_a_killed_shim_is_gone_before_a_reader_says_lost(world: World) -> None:
    world.agent_saying(shell("while :; do echo tick >> ticks; sleep 0.05; done"), says("Done."))
    run_id = world.start()
    ticks = world.work / "ticks"
    wait_for(ticks.exists, BOUND, "the command")
    os.kill(min(shims(run_id)), signal.SIGKILL)
    lost(world, run_id)
    counted = ticks.stat().st_size
    assert shims(run_id) == []
    over(world, run_id)
    assert ticks.stat().st_size == counted
