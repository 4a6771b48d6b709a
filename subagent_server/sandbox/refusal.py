"""The one error of this room."""


class BoxRefused(Exception):
    """There can be no box, or a started one is not as asked; `reason` is a part of a sentence."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
