"""Sparing an API together: what a runner asks of those who use the same one. The worker fills it in."""

from typing import Protocol


class Pace(Protocol):
    """The runs of one root that call one API with one key."""

    def hold(self) -> float:
        """Return the seconds that this run has to wait before its next call; 0 where it may call."""
        ...

    def busy(self, seconds: float, *, asked: bool) -> float:
        """Tell the others that the API was busy and return how long to wait before the next attempt.

        `seconds` is what this run would wait by itself; `asked` says that the API named them.
        """
        ...


class Alone:
    """The pace of a run that knows of no other."""

    def hold(self) -> float:
        """Return 0: nobody else is there."""
        return 0.0

    def busy(self, seconds: float, *, asked: bool) -> float:
        """Return `seconds`."""
        return seconds
