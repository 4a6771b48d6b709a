"""A runs root that is renamed under live runs: they go on in it, and their record is true."""

from pathlib import Path

import pytest

from subagent_server.process.cleanup import is_gone
from subagent_server.run.files import remove_tree
from subagent_server.run.paths import run_at
from subagent_server.run.store import RunStore
from tests.helpers.repositories import make_repository
from tests.helpers.runs import RUN_ID, make_request
from tests.helpers.turns import says, shell
from tests.helpers.wait import wait_for
from tests.helpers.world import BOUND, World


def test_a_run_in_a_renamed_root_is_waited_for(store: RunStore, tmp_path: Path) -> None:
    run = run_at(store.create(make_request(RUN_ID)).directory)
    away = store.paths.root.rename(tmp_path / "away")
    assert not is_gone(run)
    remove_tree(run.root.open().entry(run.run_id))
    assert is_gone(run) and away.exists()


@pytest.mark.parametrize("isolation", ["none", "worktree"])
def test_runs_go_on_in_a_root_that_is_renamed_and_end_there(world: World, isolation: str) -> None:
    make_repository(world.work)
    world.agent_saying(shell("until [ -e go ]; do sleep 0.05; done"), says("Done."), isolation=isolation)
    run_id = world.start()
    wait_for(lambda: world.events(run_id, "tool_call"), BOUND, "the command of the run")
    worktree = world.meta(run_id).worktree
    away = world.runs.rename(world.home / "away")
    (world.work if worktree is None else Path(worktree.path)).joinpath("go").touch()
    record = away / run_id / "exit.json"
    wait_for(
        lambda: record.exists() and "treeGone" in record.read_text(encoding="utf-8"),
        BOUND,
        "the end of the run",
    )
    away.rename(world.runs)
    assert world.completed_and_gone(run_id) == "Done."
    assert world.paths(run_id).worker_out.path.read_text(encoding="utf-8") == ""
