"""The error for a configuration file that cannot be changed safely."""


class NotEditable(Exception):
    """The file stays as it is. `reason` is a clause about "it"; `line` counts from 1, None if unknown."""

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.line = line
