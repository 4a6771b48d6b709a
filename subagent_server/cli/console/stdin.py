"""Texts given as an argument, or on stdin with `-`."""

import sys

from subagent_server.domain.errors import BadArgument


def argument_or_stdin(text: str, what: str) -> str:
    """Return `text`, or for `-` all of stdin without trailing line ends.

    Raises:
        BadArgument: stdin is closed or is not UTF-8; `what` names the text in the sentence.
    """
    return stdin_text(what) if text == "-" else text


def stdin_text(what: str) -> str:
    """Return all of stdin. Raises as `argument_or_stdin` does."""
    if sys.stdin is None:
        raise BadArgument(f"The {what} cannot be read, because stdin is closed: give it as an argument.")
    try:
        return sys.stdin.buffer.read().decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise BadArgument(f"The {what} on stdin is not UTF-8 text: convert it first.") from error
