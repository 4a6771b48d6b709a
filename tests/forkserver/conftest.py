"""A tiny zygote of its own for each test that asks for one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.forkserver.tiny import TinyPlace, tiny_place
from tests.helpers.worlds import world

__all__ = ["place", "world"]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[TinyPlace]:
    """The place of tiny zygotes; none is started yet."""
    with tiny_place(tmp_path / "place") as made:
        yield made
