"""A world whose working directory is a repository."""

import pytest

from tests.helpers.world import World
from tests.worktrees.repository import Repository


@pytest.fixture
def repository(world: World) -> Repository:
    """Make the working directory of the world a repository with one commit."""
    return Repository(world)
