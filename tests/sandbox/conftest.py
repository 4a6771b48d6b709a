"""What tests of the sandbox share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.world import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A world that is checked at its end."""
    made = World(tmp_path)
    try:
        yield made
    finally:
        made.close()
