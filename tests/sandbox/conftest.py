"""What tests of the sandbox share."""

from tests.helpers.worlds import world

__all__ = ["world"]
