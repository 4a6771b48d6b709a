"""The power goes after a worktree run or a merge was acknowledged: its commits are there, git is well."""

import subprocess
from pathlib import Path

import pytest

from subagent_server.run.store import RunStore
from tests.faults.disks import PowerCut
from tests.helpers.repositories import git
from tests.helpers.turns import says, shell
from tests.helpers.world import World

KEPT = "echo by the run > made.txt; git -c user.name=A -c user.email=a@b commit -q --allow-empty -m own"
CUTS = 15
"""Each of a run's end and of a merge."""


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "cuts", [1, pytest.param(CUTS, marks=pytest.mark.soak)], ids=["one of each", "thirty cuts"]
)
def test_acknowledged_commits_and_merges_outlive_a_power_cut(world: World, tmp_path: Path, cuts: int) -> None:
    disk, elsewhere = PowerCut(tmp_path, 64), world.store
    world.agent_saying(shell(KEPT), says("All done."), isolation="worktree", sandbox="none")
    with disk.powered() as place:
        top = place / "work"
        git("init", "--quiet", "--initial-branch=main", top)
        (top / "first.txt").write_text("first\n", encoding="utf-8")
        git("-C", top, "add", "--all")
        git("-C", top, "-c", "core.fsync=all", "commit", "--quiet", "-m", "first")
        subprocess.run(["sync"], check=True)
    for number in range(2 * cuts):
        merges = number % 2 == 1
        with disk.powered() as place:
            world.store = RunStore(place / "runs")
            world.environment["SUBAGENT_RUNS"] = str(world.store.paths.root)
            world.environment["XDG_STATE_HOME"] = str(place / "state")
            top = place / "work"
            run_id = world.start(cwd=str(top))
            world.completed_and_gone(run_id)
            told = world.look(run_id)
            worktree = told.meta.worktree
            assert worktree is not None
            tip = git("-C", top, "rev-parse", worktree.branch)
            if merges:
                done = world.cli("merge", run_id)
                assert done.returncode == 0, done.stderr
                tip = git("-C", top, "rev-parse", "HEAD")
            disk.cut()
            world.store = elsewhere
        with disk.powered() as place:
            top = place / "work"
            assert git("-C", top, "fsck", "--no-dangling", "--full") == "", number
            assert git("-C", top, "rev-parse", "HEAD" if merges else worktree.branch) == tip
            assert git("-C", top, "show", f"{tip.strip()}:made.txt") == "by the run\n"
            git("-C", top, "reset", "--hard", "--quiet")  # files are as git has them, or are made anew
            store = RunStore(place / "runs")
            assert store.read(run_id).status == "completed"
            world.store = store
            world.environment["SUBAGENT_RUNS"] = str(store.paths.root)
            assert world.cli("show", run_id).returncode == 0
            assert world.cli("rm", "--drop-unmerged", run_id).returncode == 0
            assert not Path(worktree.path).exists()
            subprocess.run(["sync"], check=True)
            world.store = elsewhere
