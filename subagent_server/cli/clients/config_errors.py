"""Why a configuration file of a client is left alone."""


class NotEditable(Exception):
    """The file is left as it is. `reason` is a clause about "it"; `line`, from 1, where it is known."""

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.line = line
