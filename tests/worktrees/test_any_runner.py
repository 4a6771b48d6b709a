"""Programs of another make work in worktrees as the built-in loop does, and know it."""

import json
import sys

from tests.extensions.programs import test_claude
from tests.helpers.turns import says, shell
from tests.helpers.world import World
from tests.worktrees.repository import WORK, Repository


def test_the_changes_of_any_program_are_kept_on_its_branch(world: World, repository: Repository) -> None:
    script = world.home / "program.py"
    script.write_text("import os; open('made', 'w').write(os.getcwd()); print('Done.')", encoding="utf-8")
    keys = {"runner": "command", "command": sys.executable, "args": [str(script)]}
    world.agent("worker", "", isolation="worktree", **keys)
    run_id = world.start(cwd="deep")
    assert world.completed(run_id) == "Done."
    repository.gone(run_id)
    shown = repository.shown(run_id)
    assert (shown["commits"], shown["files"]) == (1, 1)
    place = repository.git("show", f"{shown['branch']}:deep/made")
    assert place == str(repository.place(run_id) / "deep")
    assert "merged" in repository.merge(run_id) and (repository.top / "deep" / "made").exists()


def test_claude_code_is_told_of_its_worktree(world: World, repository: Repository) -> None:
    test_claude.plays(world, test_claude.result(), isolation="worktree")
    run_id = world.start()
    assert world.completed(run_id) == "Done."
    repository.gone(run_id)
    branch = repository.shown(run_id)["branch"]
    heard = repository.git("show", f"{branch}:heard").splitlines()
    system = json.loads(heard[1])["system"]
    assert f"on the branch {branch} from commit {repository.head[:12]}" in system
    assert "not committed are not in it" in system and not (repository.top / "heard").exists()


def test_the_loop_tells_the_model_of_its_worktree_and_of_none_without_one(
    world: World, repository: Repository
) -> None:
    simulator = world.play(shell(WORK), says("Done."))
    run_id = world.completed_run()
    world.agent("plain")
    world.completed(world.start(agent="plain"))
    first, last = (simulator.requests[at].body["system"][-1]["text"] for at in (0, -1))
    assert f"{repository.shown(run_id)['branch']} from commit" in first and "worktree" not in last
