"""The errors of the sandbox: a box that cannot be built, and a place that it must not write."""

from pathlib import Path


class BoxRefused(Exception):
    """There can be no box, or a started one is not as asked; `reason` is a part of a sentence."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class PlaceRefused(Exception):
    """The author of an agent asks for a place that no box may write."""

    def __init__(self, place: Path) -> None:
        super().__init__(str(place))
        self.place = place
