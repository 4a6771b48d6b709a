"""Many runs of one repository at once (the whole campaigns are for `make test-whole`)."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from subagent_server.verbs.merge_run import merge_run
from tests.busy import busy
from tests.helpers.world import World
from tests.worktrees.campaign import runs_and_kills, runs_side_by_side
from tests.worktrees.repository import Repository


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("runs", "killed"), [(4, 3), pytest.param(20, 10, marks=pytest.mark.soak)], ids=["few", "whole"]
)
def test_whoever_is_killed_the_working_copy_is_untouched_and_every_change_is_merged_or_in_conflict(
    world: World, repository: Repository, runs: int, killed: int
) -> None:
    runs_and_kills(world, repository, runs, killed)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("rounds", "worktrees", "plain"),
    [(1, 2, 4), pytest.param(10, 12, 24, marks=pytest.mark.soak)],
    ids=["few", "whole"],
)
def test_runs_of_one_repository_disturb_neither_each_other_nor_the_person(
    world: World, repository: Repository, rounds: int, worktrees: int, plain: int
) -> None:
    with ExitStack() as load:
        if rounds > 1:
            load.enter_context(busy())
        for _ in range(rounds):
            runs_side_by_side(world, repository, worktrees, plain)


def test_merges_of_one_moment_are_made_one_after_the_other(world: World, repository: Repository) -> None:
    runs = [repository.left(f"echo new > {name}.txt") for name in "abcdef"]
    with ThreadPoolExecutor(len(runs)) as threads:
        merged = list(threads.map(lambda run_id: merge_run(world.service, run_id).sentence, runs))
    assert all(": merged (merge; 1 file, " in sentence for sentence in merged)
    assert repository.git("status", "--short") == "", "what git leaves of the loser of two merges"
