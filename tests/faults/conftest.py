"""A world of its own for each test, and one process for all of a session that forks the command."""

from collections.abc import Iterator

import pytest

from tests.helpers.swift import Swift
from tests.helpers.worlds import world

__all__ = ["world"]


@pytest.fixture(scope="session")
def swift() -> Iterator[Swift]:
    """The command, many times over."""
    with Swift() as command:
        yield command
