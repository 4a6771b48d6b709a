"""The lines of a search's result, within bounds."""

MOST_CHARACTERS = 30_000


class Enough(Exception):
    """The result is as long as it may be; the text says so to the model."""


class ResultLines:
    """Up to `matches` matches, and 30,000 characters."""

    def __init__(self, matches: int) -> None:
        self.lines: list[str] = []
        self._limit = matches
        self._left = matches
        self._room = MOST_CHARACTERS

    def match(self) -> None:
        """Count one more match, before its line is added.

        Raises:
            Enough: there are as many as there may be.
        """
        if self._left == 0:
            raise Enough(f"only the first {self._limit} are shown: raise `limit` or narrow the search")
        self._left -= 1

    def add(self, line: str) -> None:
        """Add a line.

        Raises:
            Enough: there is no room for it.
        """
        self._room -= len(line) + 1
        if self._room < 0:
            raise Enough("cut here because the result is long: narrow the search")
        self.lines.append(line)

    def text(self, nothing: str, notes: list[str]) -> str:
        """Return the result for the model: the lines, or `nothing`, and the notes."""
        return "\n".join([*(self.lines or [nothing]), *(f"[{note}]" for note in notes)])
