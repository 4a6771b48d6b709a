"""Many runs of one repository at once (the whole campaign is for `make test-whole`)."""

import pytest

from tests.helpers.world import World
from tests.worktrees.campaign import runs_and_kills
from tests.worktrees.repository import Repository


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("runs", "killed"), [(4, 3), pytest.param(20, 10, marks=pytest.mark.soak)], ids=["few", "whole"]
)
def test_whoever_is_killed_the_working_copy_is_untouched_and_every_change_is_merged_or_in_conflict(
    world: World, repository: Repository, runs: int, killed: int
) -> None:
    runs_and_kills(world, repository, runs, killed)
