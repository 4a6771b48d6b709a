"""A world of its own for each test."""

from tests.helpers.worlds import world

__all__ = ["world"]
