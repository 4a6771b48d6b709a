"""A world of its own for each test, and a warm process of its own where a test asks for one."""

from collections.abc import Iterator

import pytest

from tests.helpers.world import World
from tests.helpers.worlds import world
from tests.launch.warm_place import WarmPlace, warm_place

__all__ = ["place", "world"]


@pytest.fixture
def place(world: World) -> Iterator[WarmPlace]:
    """The place of a warm process of this test alone."""
    with warm_place(world) as made:
        yield made
