"""The text of a JSON file of another program: find its members, and lay out a new member like the others."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

SPACE = " \t\r\n"
_DECODER = json.JSONDecoder()


class Member(NamedTuple):
    """A member of an object: its key, and where key and value are in the text."""

    key: str
    start: int
    value: int
    end: int


@dataclass(frozen=True)
class Object:
    """An object in a text: where its brackets are, and its members."""

    start: int
    end: int
    members: tuple[Member, ...]

    def last(self, key: str) -> Member | None:
        """Return the member of this key: the last one, because it overrides the others."""
        return next((member for member in reversed(self.members) if member.key == key), None)


@dataclass(frozen=True)
class Style:
    """How a text is laid out: one step of indentation (None: all on one line), and its line ends."""

    step: str | None
    newline: str

    @classmethod
    def of(cls, text: str) -> "Style":
        whole = object_at(text, after_space(text, 0))
        newline = "\r\n" if "\r\n" in text else "\n"
        if not whole.members:
            return cls("  ", newline)
        step = indent_of(text, whole.members[0].start)
        return cls(None if step is None else step or "  ", newline)

    def dumped(self, value: Any, indent: str) -> str:
        """Return a value as JSON text whose lines after the first are indented."""
        lines = json.dumps(value, indent=self.step, ensure_ascii=False).split("\n")
        return f"{self.newline}{indent}".join(lines)


def inserted(text: str, target: Object, key: str, value: Any, style: Style) -> str:
    """Return `text` with a new last member in an object."""
    indent = _member_indent(text, target, style)
    if indent is None:
        member, before, after = json.dumps({key: value}, ensure_ascii=False)[1:-1], "", ""
    else:
        member = f"{json.dumps(key)}: {style.dumped(value, indent)}"
        before = f"{style.newline}{indent}"
        after = f"{style.newline}{line_indent(text, target.start)}"
    if target.members:
        place = target.members[-1].end
        return f"{text[:place]},{before or ' '}{member}{text[place:]}"
    return f"{text[: target.start + 1]}{before}{member}{after}{text[target.end :]}"


def _member_indent(text: str, target: Object, style: Style) -> str | None:
    """Return how far the members of an object are indented; None if they share a line."""
    if target.members:
        return indent_of(text, target.members[-1].start)
    return None if style.step is None else line_indent(text, target.start) + style.step


def indent_of(text: str, position: int) -> str | None:
    """Return the indentation before `position` if only space precedes it on its line, else None."""
    line = text[text.rfind("\n", 0, position) + 1 : position]
    alone = not line.strip() and "\n" in text[:position]
    return line if alone else None


def line_indent(text: str, position: int) -> str:
    """Return the leading space of the line of `position`."""
    line = text[text.rfind("\n", 0, position) + 1 : position]
    return line[: len(line) - len(line.lstrip())]


def object_at(text: str, start: int) -> Object:
    """Return the object that begins at `start`; the text is known to be JSON."""
    members = tuple(_members(text, start))
    end = after_space(text, members[-1].end if members else start + 1)
    return Object(start, end, members)


def _members(text: str, start: int) -> Iterator[Member]:
    position = after_space(text, start + 1)
    while text[position] != "}":
        key, after_key = _DECODER.raw_decode(text, position)
        value = after_space(text, after_space(text, after_key) + 1)
        _, end = _DECODER.raw_decode(text, value)
        yield Member(key, position, value, end)
        position = after_space(text, end)
        if text[position] == ",":
            position = after_space(text, position + 1)


def items(text: str, start: int) -> Iterator[tuple[int, int]]:
    """Yield where each item of the list that begins at `start` begins and ends."""
    position = after_space(text, start + 1)
    while text[position] != "]":
        _, end = _DECODER.raw_decode(text, position)
        yield position, end
        position = after_space(text, end)
        if text[position] == ",":
            position = after_space(text, position + 1)


def after_space(text: str, position: int) -> int:
    """Return where the next character that is no space is."""
    while text[position] in SPACE:
        position += 1
    return position
