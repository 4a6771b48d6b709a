"""In a fresh clone of this project a run goes into `runs/`, which has a page that explains it."""

import os
import shutil

from tests.helpers.forked import PROGRAM, run
from tests.helpers.processes import REPOSITORY
from tests.helpers.repositories import git
from tests.helpers.turns import says
from tests.helpers.world import BOUND, World


def test_the_first_run_goes_into_its_runs_folder_and_leaves_the_clone_clean(world: World) -> None:
    world.agent_saying(says("Done."))
    origin, clone = world.home / "origin", world.home / "clone"
    (origin / "runs").mkdir(parents=True)
    for name in (".gitignore", "runs/README.md"):
        shutil.copy(REPOSITORY / name, origin / name)
    git("init", "--quiet", origin)
    git("-C", origin, "add", ".")
    git("-C", origin, "commit", "--quiet", "--message", "A project")
    environment = {name: value for name, value in world.environment.items() if name != "SUBAGENT_RUNS"}
    before = os.umask(0o002)  # the group writes what is cloned
    try:
        git("clone", "--quiet", origin, clone)
        assert [path.name for path in (clone / "runs").iterdir()] == ["README.md"]
        done = run([*PROGRAM, "run", "worker", "Do it."], environment, cwd=clone, seconds=BOUND)
    finally:
        os.umask(before)
    assert (done.returncode, done.stdout) == (0, b"Done.\n"), done.stderr
    listed = run([*PROGRAM, "ls", "-q"], environment, cwd=clone, seconds=BOUND)
    (run_id,) = listed.stdout.decode().split()
    assert (clone / "runs" / run_id / "run.meta.json").is_file()
    assert git("-C", clone, "status", "--porcelain") == ""
