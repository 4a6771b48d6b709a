"""What the search says, as JSON lines on stdout.

`{"line": text}` for each line of the result, and at the end `{"end": notes}` or `{"refused": why}`.
"""

import json
import sys

from subagent_server.toolkit.workspace.searching.tree import Stop


class Answer:
    """The result as it comes, up to `matches` matches and `characters` characters."""

    def __init__(self, *, matches: int, characters: int) -> None:
        self._limit = matches
        self._left = matches
        self._room = characters
        self.lines = 0

    def match(self) -> None:
        """Count one more match, before its line is sent.

        Raises:
            Stop: there are enough.
        """
        if self._left == 0:
            raise Stop(f"only the first {self._limit} are shown: raise `limit` or narrow the search")
        self._left -= 1

    def line(self, text: str) -> None:
        """Send a line.

        Raises:
            Stop: the result is long enough.
        """
        self._room -= len(text) + 1
        if self._room < 0:
            raise Stop("cut here because the result is long: narrow the search")
        self.lines += 1
        _say("line", text)

    def end(self, notes: list[str]) -> None:
        """Say that this was all, with what the reader should know of it."""
        _say("end", notes)

    def refuse(self, why: str) -> None:
        """Say that the request makes no sense."""
        _say("refused", why)


def _say(kind: str, content: object) -> None:
    sys.stdout.write(json.dumps({kind: content}) + "\n")
    sys.stdout.flush()
