"""Patterns of paths, matched name by name: `*`, `?`, `[...]`, `{a,b}`, `**` for directories.

ripgrep has such patterns too, but a file that one of them names is found even if an ignore file names it, so
they are not used. The options for ripgrep only narrow its walk: each file is matched here.
"""

import fnmatch
import re
from collections.abc import Callable, Iterable
from itertools import takewhile

_MOST_ALTERNATIVES = 200
_MOST_CHARACTERS = 4096
_BRACES = re.compile(r"\{([^{}]*,[^{}]*)\}")
_MAGIC = re.compile(r"[*?\[]")
_SPECIAL = re.compile(r"[^A-Za-z0-9._-]+")

_Match = Callable[[str], re.Match[str] | None]
_State = frozenset[tuple[int, int]]
"""How far each alternative is: its number and the index of its next part."""


class BadPathPattern(ValueError):
    """A pattern that cannot be used; the text says why."""


class PathPattern:
    """A pattern for whole relative paths. The states of directories are kept, so a walk is matched fast."""

    def __init__(self, pattern: str) -> None:
        """Read `pattern`.

        Raises:
            BadPathPattern: it is empty or too long, climbs out with `..`, or has too many alternatives.
        """
        if len(pattern) > _MOST_CHARACTERS:
            raise BadPathPattern(f"it has more than {_MOST_CHARACTERS:,} characters")
        self._alternatives = [_parts(text) for text in _expanded(pattern)]
        self._matchers: list[list[_Match | None]] = [
            [None if part == "**" else re.compile(fnmatch.translate(part)).match for part in parts]
            for parts in self._alternatives
        ]
        self._lasts: dict[str, list[_Match | None]] = {}
        self._states = {"": self._past_stars((number, 0) for number in range(len(self._matchers)))}

    def matches(self, path: str) -> bool:
        """Whether a whole relative path matches."""
        above, _, name = path.rpartition("/")
        return any(match is None or match(name) for match in self._last_matchers(above))

    def directories(self) -> list[str]:
        """Return the names of the directories at the start of every path that can match."""
        plain: list[list[str]] = []
        for parts in self._alternatives:
            magic = next((n for n, part in enumerate(parts) if _MAGIC.search(part)), len(parts))
            plain.append(parts[: min(magic, len(parts) - 1)])
        common = takewhile(lambda names: len(set(names)) == 1, zip(*plain, strict=False))
        return [names[0] for names in common]

    def names(self) -> list[str] | None:
        """Return patterns of file names, of letters, digits, `.`, `_`, `-` and `*`, for all that can match.

        They may match more. None means any name.
        """
        lasts = [parts[-1] for parts in self._alternatives]
        if any(last == "**" for last in lasts):
            return None
        names = {_SPECIAL.sub("*", last.partition("[")[0] + "*" * ("[" in last)) for last in lasts}
        return None if "*" in names else sorted(names)

    def _last_matchers(self, directory: str) -> list[_Match | None]:
        """Return the matchers for names in a directory that complete the pattern; None matches every name."""
        matchers = self._lasts.get(directory)
        if matchers is None:
            matchers = self._lasts[directory] = [
                self._matchers[number][index]
                for number, index in self._directory(directory)
                if index < len(self._matchers[number])
                and not any(self._matchers[number][index + 1 :])  # only `**` may follow
            ]
        return matchers

    def _directory(self, path: str) -> _State:
        state = self._states.get(path)
        if state is None:
            names = path.split("/")
            known = next(n for n in range(len(names) - 1, -1, -1) if "/".join(names[:n]) in self._states)
            state = self._states["/".join(names[:known])]
            for depth in range(known, len(names)):
                state = self._states["/".join(names[: depth + 1])] = self._step(state, names[depth])
        return state

    def _step(self, state: _State, name: str) -> _State:
        """Return the state after one more name; empty if nothing can match any more."""
        after = []
        for number, index in state:
            matchers = self._matchers[number]
            if index == len(matchers):
                continue
            match = matchers[index]
            if match is None:
                after.append((number, index))
            elif match(name):
                after.append((number, index + 1))
        return self._past_stars(after)

    def _past_stars(self, places: Iterable[tuple[int, int]]) -> _State:
        """Add the places behind each `**`, which also stands for no directory at all."""
        found = set()
        for number, start in places:
            matchers = self._matchers[number]
            index = start
            found.add((number, index))
            while index < len(matchers) and matchers[index] is None:
                index += 1
                found.add((number, index))
        return frozenset(found)


def _parts(pattern: str) -> list[str]:
    parts = [part for part in pattern.split("/") if part not in ("", ".")]
    if not parts:
        raise BadPathPattern("it is empty")
    if ".." in parts:
        raise BadPathPattern("it leads out with `..`")
    return parts


def _expanded(pattern: str) -> list[str]:
    """Return `pattern` once for each choice from its braces."""
    done: list[str] = []
    todo = [pattern]
    while todo:
        if len(done) + len(todo) > _MOST_ALTERNATIVES:
            raise BadPathPattern(f"its braces make more than {_MOST_ALTERNATIVES} patterns")
        text = todo.pop()
        braces = _BRACES.search(text)
        if braces is None:
            done.append(text)
        else:
            todo += [
                f"{text[: braces.start()]}{choice}{text[braces.end() :]}" for choice in braces[1].split(",")
            ]
    return done
