"""In a fresh clone of this project a run goes into `runs/`, which has a page that explains it."""

import os
import shutil
import subprocess
from pathlib import Path

from tests.helpers.forked import PROGRAM, run
from tests.helpers.processes import REPOSITORY
from tests.helpers.turns import says
from tests.helpers.world import BOUND, World


def git(world: World, *words: str, cwd: Path) -> str:
    """Run git without a configuration and return its output."""
    person = {
        f"GIT_{role}_{field}": "somebody@example.org"
        for role in ("AUTHOR", "COMMITTER")
        for field in ("NAME", "EMAIL")
    }
    environment = {"PATH": os.environ["PATH"], "HOME": str(world.home), "GIT_CONFIG_NOSYSTEM": "1", **person}
    done = subprocess.run(
        ["git", *words],
        cwd=cwd,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        timeout=BOUND,
        check=True,
    )
    return done.stdout


def test_the_first_run_goes_into_its_runs_folder_and_leaves_the_clone_clean(world: World) -> None:
    world.agent()
    world.play(says("Done."))
    origin, clone = world.home / "origin", world.home / "clone"
    (origin / "runs").mkdir(parents=True)
    for name in (".gitignore", "runs/README.md"):
        shutil.copy(REPOSITORY / name, origin / name)
    git(world, "init", "--quiet", cwd=origin)
    git(world, "add", ".", cwd=origin)
    git(world, "commit", "--quiet", "--message", "A project", cwd=origin)
    environment = {name: value for name, value in world.environment.items() if name != "SUBAGENT_RUNS"}
    before = os.umask(0o002)  # the group writes what is cloned
    try:
        git(world, "clone", "--quiet", str(origin), str(clone), cwd=world.home)
        assert [path.name for path in (clone / "runs").iterdir()] == ["README.md"]
        done = run([*PROGRAM, "run", "worker", "Do it."], environment, cwd=clone, seconds=BOUND)
    finally:
        os.umask(before)
    assert (done.returncode, done.stdout) == (0, b"Done.\n"), done.stderr
    listed = run([*PROGRAM, "ls", "-q"], environment, cwd=clone, seconds=BOUND)
    (run_id,) = listed.stdout.decode().split()
    assert (clone / "runs" / run_id / "run.meta.json").is_file()
    assert git(world, "status", "--porcelain", cwd=clone) == ""
