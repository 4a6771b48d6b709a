"""A world whose working directory is a repository."""

import pytest

from tests.helpers.world import World
from tests.worktrees.repository import Repository


@pytest.fixture
def repository(world: World, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """Make the working directory of the world a repository with one commit."""
    monkeypatch.setenv("HOME", str(world.home))  # for verbs that a test calls in this process
    return Repository(world)
