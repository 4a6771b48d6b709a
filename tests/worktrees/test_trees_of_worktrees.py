"""Nested runs in worktrees: each begins at its parent's branch, and work goes up the tree."""

from pathlib import Path

import pytest

from tests.helpers.turns import call, says, shell
from tests.helpers.world import World
from tests.worktrees.repository import Repository

COMMITS = "git -c user.name=A -c user.email=a@example.com commit -qam"
RUN = {"run": '"runId": ?"([a-z0-9-]+)"'}


def test_a_child_begins_at_its_parents_branch_is_merged_there_and_goes_up_with_the_parent(
    world: World, repository: Repository
) -> None:
    world.agent("lead", isolation="worktree", agents=["worker"])
    lead = [
        shell(f"echo lead > shared.txt; {COMMITS} 'By the lead'; echo loose > loose.txt"),
        call("run_worker", prompt="Add a file.", waitSeconds=60),
        {**call("merge_run", runId="${run}", how="squash"), "capture": RUN},
        shell("cat child.txt; git log --format=%s"),
        says("All done."),
    ]
    child = [shell("cat shared.txt; ls; echo child > child.txt"), says("Added.")]
    world.play(*child, conversations=[{"when": {"prompt": "Lead"}, "turns": lead}])
    run_id = world.start("Lead.", agent="lead")
    assert world.completed(run_id) == "All done."
    repository.gone(run_id)
    (nested,) = world.store.children_of(run_id)
    saw = world.events(nested, "tool_result")[0]["text"].split()
    assert saw == ["lead", "deep", "shared.txt"], "what the parent has not committed is not there"
    answers = [event["text"] for event in world.events(run_id, "tool_result")]
    assert any("merged (squash" in answer for answer in answers), answers
    shown = repository.shown(run_id)
    assert (shown["commits"], repository.shown(nested)["merged"]) == (3, True)
    assert repository.shown(nested)["from"] == str(repository.place(run_id))
    repository.merge(run_id)
    assert (repository.top / "child.txt").exists() and (repository.top / "loose.txt").exists()
    assert repository.git("show", "HEAD:shared.txt") == "lead"


def test_work_below_a_parent_without_changes_goes_to_where_the_parent_came_from(
    world: World, repository: Repository
) -> None:
    world.agent("lead", isolation="worktree", agents=["worker"])
    lead = [call("run_worker", prompt="Add a file.", waitSeconds=60), says("All done.")]
    child = [shell("echo child > child.txt"), says("Added.")]
    world.play(*child, conversations=[{"when": {"prompt": "Lead"}, "turns": lead}])
    run_id = world.start("Lead.", agent="lead")
    assert world.completed(run_id) == "All done."
    repository.gone(run_id)
    (nested,) = world.store.children_of(run_id)
    assert repository.shown(run_id)["state"] == "removed"
    with world.serve() as parent:
        merged = parent.call("merge_run", runId=nested)
        assert merged["success"] is True and merged["updatedMetadata"]["worktree"]["merged"] is True
        assert "no changes" in parent.refused("merge_run", runId=run_id)
    assert (repository.top / "child.txt").exists()


@pytest.mark.parametrize("leads_to", ["private", "hooks"])
def test_no_merge_writes_through_a_link_that_a_run_makes_meanwhile(
    world: World, repository: Repository, leads_to: str
) -> None:
    private = world.home / "private"
    private.mkdir()
    in_worktree = {"isolation": "worktree"} if leads_to == "hooks" else {}
    target = "$(git rev-parse --absolute-git-dir)/hooks" if in_worktree else str(private)
    world.agent(isolation="worktree", sandbox="bwrap")
    world.agent("lead", sandbox="bwrap", agents=["worker"], **in_worktree)
    lead = [
        call("run_worker", prompt="Add files.", waitSeconds=60),
        shell(
            f"(t={target}; until [ -e d/0100 ]; do :; done; mv d e; ln -s $t d) > /dev/null 2>&1 & echo waits"
        ),
        {**call("merge_run", runId="${run}"), "capture": RUN},
        says("All done."),
    ]
    child = [shell("mkdir d; cd d; touch $(seq -w 0 3000)"), says("Added.")]
    world.play(*child, conversations=[{"when": {"prompt": "Lead"}, "turns": lead}])
    run_id = world.start("Lead.", agent="lead")
    assert world.completed(run_id) == "All done."
    repository.gone(run_id)
    if in_worktree:
        private = Path(f"{repository.place(run_id)}.git", "hooks")
    else:
        assert repository.git("ls-files", "d").count("\n") == 3000
    assert not list(private.iterdir())
