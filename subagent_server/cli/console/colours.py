"""The colours of the terminal: two palettes, and whether a stream has colours at all."""

import os
import re
import sys
from typing import TextIO

from subagent_server.cli.console.output import is_terminal

FIXED_COLOURS = {
    "bold": "1",
    "red": "38;5;167",
    "green": "38;5;64",
    "yellow": "38;5;136",
    "blue": "38;5;32",
    "magenta": "38;5;133",
    "cyan": "38;5;30",
    "grey": "38;5;244",
}
"""Colours of the 256 whose place no theme changes: each can be read on white, on black and on Solarized."""
_OF_THE_THEME = {
    "bold": "1",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
    "grey": "2",  # faint: bright black is the background of some themes
}
"""For terminals that do not say that they have 256 colours."""
PLAIN = "\x1b[0m"
COLOUR_CODE = re.compile(r"(\x1b\[[0-9;]*m)")


def coloured(text: str, colour: str | None, stream: TextIO | None = None) -> str:
    """Return `text` in a colour if the stream, which is stdout by default, has colours."""
    if not text or colour is None or not has_colours(stream):
        return text
    codes = FIXED_COLOURS if _has_256_colours() else _OF_THE_THEME
    return f"\x1b[{codes[colour]}m{text}{PLAIN}"


def has_colours(stream: TextIO | None = None) -> bool:
    """Whether the stream, stdout by default, is a terminal with colours and NO_COLOR is not set.

    https://no-color.org: any non-empty value of NO_COLOR switches colours off.
    """
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return not plain and is_terminal(sys.stdout if stream is None else stream)


def _has_256_colours() -> bool:
    return bool(os.environ.get("COLORTERM")) or "256color" in os.environ.get("TERM", "")


def without_colours(line: str) -> str:
    """Return a line that may have colours without them."""
    return COLOUR_CODE.sub("", line)
