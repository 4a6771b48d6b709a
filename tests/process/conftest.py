"""A zygote for each test that asks for one, or one that several share."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers import warm
from tests.helpers.warm_place import WarmPlace
from tests.helpers.world import World


@pytest.fixture
def place(world: World) -> Iterator[WarmPlace]:
    """The place of a zygote of this test alone; none is started yet."""
    made = WarmPlace(world)
    yield made
    warm.end(made.directory)


@pytest.fixture(scope="session")
def shared_directory() -> Iterator[Path]:
    """The private directory of a zygote that several tests use and none harms."""
    directory = Path(tempfile.mkdtemp(prefix="subagent-tests-"))
    yield directory
    warm.end(directory)


@pytest.fixture
def shared_place(world: World, shared_directory: Path) -> WarmPlace:
    """The place of a zygote that is there, used by one test at a time."""
    made = WarmPlace(world, shared_directory)
    if not list(warm.zygotes(shared_directory)):
        made.start()
    return made
