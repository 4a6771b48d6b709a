"""Slowing down together when an API is busy. The worker implements `Pace` for its runner."""

from typing import Protocol

LONGEST_WAIT_SECONDS = 600.0
"""No run waits longer for a busy API at one time, whatever the API asks for."""


class Pace(Protocol):
    """The common pace of all runs of a root that call the same API with the same key."""

    def hold(self) -> float:
        """Return the seconds to wait before the next call; 0 if the run may call now."""
        ...

    def busy(self, seconds: float, *, asked: bool) -> float:
        """Report to the other runs that the API was busy, and return the seconds to wait before a retry.

        `seconds` is the wait that this run would choose by itself; `asked` is true if the API named it.
        """
        ...


class Alone:
    """The pace of a single run."""

    def hold(self) -> float:
        """Return 0: no other run is considered."""
        return 0.0

    def busy(self, seconds: float, *, asked: bool) -> float:
        """Return `seconds`."""
        return seconds
