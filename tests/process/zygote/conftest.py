"""A tiny zygote of its own for each test that asks for one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.zygote.tiny import TinyPlace, tiny_place

__all__ = ["place"]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[TinyPlace]:
    """The place of tiny zygotes; none is started yet."""
    with tiny_place(tmp_path / "place") as made:
        yield made
