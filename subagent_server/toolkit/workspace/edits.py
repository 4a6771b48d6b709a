"""Changes of a text, and lines with their numbers. Pure: no files.

A line ends at `\\n`; a `\\r` before it belongs to the line break. Inserted text takes the line breaks of the
text around it, so that a file with CRLF stays one.
"""

import re
from dataclasses import dataclass
from itertools import islice

from subagent_server.domain.errors import BadArgument

SHOWN_CHARACTERS = 50_000
_AROUND = 4
_NAMED_LINES = 20


@dataclass(frozen=True)
class Edited:
    """A text after a change, and which lines (from 1, both included) are new."""

    text: str
    first: int
    last: int


def lines_of(text: str) -> list[str]:
    """Return the lines without their breaks; a break at the end starts no further line."""
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def replace_once(name: str, text: str, old: str, new: str) -> Edited:
    """Replace the only occurrence of `old`.

    Raises:
        BadArgument: `old` is empty, changes nothing, or occurs not exactly once (at which lines is said).
    """
    if not old:
        raise BadArgument("`old_str` is empty: give the text to replace, or use `insert` or `create`.")
    wanted = old.replace("\r\n", "\n")
    if wanted == new.replace("\r\n", "\n"):
        raise BadArgument("`new_str` is the same as `old_str`, so nothing would change.")
    pattern = re.compile(r"\r?\n".join(map(re.escape, wanted.split("\n"))))
    matches = pattern.finditer(text)
    found = next(matches, None)
    if found is None:
        raise BadArgument(
            f"Nothing was replaced, because `old_str` does not occur in {name}: view the file and copy the "
            "text exactly, white space included."
        )
    others = [match.start() for match in islice(matches, _NAMED_LINES)]
    if others:
        count = 1 + len(others) + sum(1 for _ in matches)
        raise BadArgument(_too_many(name, text, [found.start(), *others], count))
    put = new.replace("\r\n", "\n").replace("\n", _break_near(found.group(), text))
    first = text.count("\n", 0, found.start()) + 1
    return Edited(text[: found.start()] + put + text[found.end() :], first, first + put.count("\n"))


def insert_after(name: str, text: str, line: int, addition: str) -> Edited:
    """Put `addition` on lines of its own after line `line`; 0 is the beginning.

    Raises:
        BadArgument: there is no such line.
    """
    pieces = text.split("\n")
    count = len(pieces) - (pieces[-1] == "")
    if not 0 <= line <= count:
        raise BadArgument(f"`insert_line` must be from 0 to {count}, the last line of {name}, not {line}.")
    ending = _break_near("", text)
    before = text if line == len(pieces) else "".join(f"{piece}\n" for piece in pieces[:line])
    put = addition.replace("\r\n", "\n").replace("\n", ending)
    if before and not before.endswith("\n"):
        before += ending
    elif text and not put.endswith("\n"):
        put += ending
    after = text[len(before) :]
    return Edited(before + put + after, line + 1, line + len(lines_of(put)))


def numbered(lines: list[str], first: int) -> str:
    """Return lines with their numbers, the first of them `first`, as `cat -n` does."""
    return "\n".join(f"{number:6}\t{line}" for number, line in enumerate(lines, first))


def excerpt(edited: Edited) -> str:
    """Return the new lines with some around them, numbered."""
    lines = lines_of(edited.text)
    first = max(edited.first - _AROUND, 1)
    return view("the file", lines, first, min(edited.last + _AROUND, len(lines)))


def view(name: str, lines: list[str], first: int, last: int) -> str:
    """Return the lines from `first` to `last` as far as they fit, with a note on the rest."""
    shown: list[str] = []
    room = SHOWN_CHARACTERS
    for line in lines[first - 1 : last]:
        cut = line if len(line) <= room else f"{line[:room]} [... {len(line) - room:,} characters cut]"
        shown.append(cut)
        room -= len(cut) + 8
        if room <= 0:
            break
    text = numbered(shown, first)
    end = first + len(shown) - 1
    if end >= last:
        return text
    return f"{text}\n[lines {first} to {end} of {len(lines)} of {name} are shown: use view_range for others]"


def _break_near(matched: str, text: str) -> str:
    """Return the line break of the replaced text; if it has none, the commonest of the whole."""
    if "\n" in matched:
        return "\r\n" if "\r\n" in matched else "\n"
    return "\r\n" if 2 * text.count("\r\n") > text.count("\n") else "\n"


def _too_many(name: str, text: str, positions: list[int], count: int) -> str:
    numbers = [str(text.count("\n", 0, position) + 1) for position in positions[:_NAMED_LINES]]
    more = ", ..." if count > _NAMED_LINES else ""
    return (
        f"Nothing was replaced, because `old_str` occurs {count} times in {name}, at lines "
        f"{', '.join(numbers)}{more}: add lines around it so that it is unique."
    )
