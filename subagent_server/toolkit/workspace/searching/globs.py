"""Patterns of file names, matched name by name so that a walk enters only what can match."""

import fnmatch
import re
from collections.abc import Iterable

_MOST_ALTERNATIVES = 200
_BRACES = re.compile(r"\{([^{}]*,[^{}]*)\}")

State = frozenset[tuple[int, int]]
"""How far each alternative is: its number and the index of its next part."""


class BadGlob(ValueError):
    """A pattern that cannot be used; the text says why."""


class Globs:
    """A pattern with `*`, `?`, `[...]`, `{a,b}`, and `**` for any number of directories."""

    def __init__(self, pattern: str) -> None:
        """Read `pattern`.

        Raises:
            BadGlob: it is empty, climbs out with `..`, or has too many alternatives.
        """
        self._alternatives = [
            [None if part == "**" else re.compile(fnmatch.translate(part)) for part in _parts(text)]
            for text in _expanded(pattern)
        ]

    def start(self) -> State:
        """Return the state before the first name."""
        return self._past_stars((number, 0) for number in range(len(self._alternatives)))

    def step(self, state: State, name: str) -> State:
        """Return the state after one more name; empty where nothing can match any more."""
        after = []
        for number, index in state:
            parts = self._alternatives[number]
            if index == len(parts):
                continue
            part = parts[index]
            if part is None:
                after.append((number, index))
            elif part.match(name):
                after.append((number, index + 1))
        return self._past_stars(after)

    def accepts(self, state: State) -> bool:
        """Whether the names so far are a whole match."""
        return any(index == len(self._alternatives[number]) for number, index in state)

    def matches(self, path: str) -> bool:
        """Whether a whole relative path matches."""
        state = self.start()
        for name in path.split("/"):
            state = self.step(state, name)
        return self.accepts(state)

    def _past_stars(self, places: Iterable[tuple[int, int]]) -> State:
        """Add the places behind each `**`, which may stand for no directory at all."""
        found = set()
        for number, start in places:
            parts = self._alternatives[number]
            index = start
            found.add((number, index))
            while index < len(parts) and parts[index] is None:
                index += 1
                found.add((number, index))
        return frozenset(found)


def _parts(pattern: str) -> list[str]:
    parts = [part for part in pattern.split("/") if part not in ("", ".")]
    if not parts:
        raise BadGlob("it is empty")
    if ".." in parts:
        raise BadGlob("it leads out with `..`")
    return parts


def _expanded(pattern: str) -> list[str]:
    """Return `pattern` once for each choice from its braces."""
    done: list[str] = []
    todo = [pattern]
    while todo:
        if len(done) + len(todo) > _MOST_ALTERNATIVES:
            raise BadGlob(f"its braces make more than {_MOST_ALTERNATIVES} patterns")
        text = todo.pop()
        braces = _BRACES.search(text)
        if braces is None:
            done.append(text)
        else:
            todo += [
                f"{text[: braces.start()]}{choice}{text[braces.end() :]}" for choice in braces[1].split(",")
            ]
    return done
