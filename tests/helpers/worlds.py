"""The fixture `world`, for the conftest of each room that starts runs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.world import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A world of its own; what is left of it is stopped and checked when the test is over."""
    made = World(tmp_path)
    yield made
    made.close()
