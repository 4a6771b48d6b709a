"""The values of a file before they have a type: text, lists and mappings.

Every scalar stays the text as written, so an agent may be called `123`, `yes` or `2026-01-02`. The text is
read as a number or a truth value only if the field wants this.
"""

import math
import re
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import TypeAlias

from subagent_server.domain.errors import shorten

Value: TypeAlias = "str | list[Value] | Block"
Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


class Plain(str):
    """Unquoted text, which may be meant as a number, a truth value or nothing at all."""

    __slots__ = ()


class Block(dict[str, "Value"]):
    """A mapping that knows the line (from 1) of each of its keys, and which of them came more than once."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[str, int] = {}
        self.repeated: dict[str, int] = {}

    def put(self, key: str, value: Value, line: int) -> None:
        """Add a key; the first of several of one name stays, and the others are remembered."""
        if key in self:
            self.repeated.setdefault(key, line)
            return
        self[key] = value
        self.lines[key] = line


class WrongValue(Exception):
    """A value of a kind that its key cannot have; the message goes after the key's name."""


_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_TRUTH = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})")
_FLOAT = re.compile(r"[-+]?([0-9]{1,30}(\.[0-9]{0,30})?|\.[0-9]{1,30})([eE][-+]?[0-9]{1,3})?")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9]")
_NAME = re.compile(r"(?:\([^()]*\)|[^\s,()]|[()])+")
_LISTED_NAME = re.compile(r"(?:\([^()]*\)|[^,()]|[()])+")


def is_null(value: Value) -> bool:
    """Whether nothing was written, or one of YAML's words for nothing."""
    return isinstance(value, Plain) and value in _NULL


def as_json(value: Value) -> Json:
    """Return `value` as JSON data, unquoted scalars read by the rules of YAML 1.2 (so `yes` is text)."""
    if isinstance(value, list):
        return [as_json(item) for item in value]
    if isinstance(value, Block):
        return {str(key): as_json(item) for key, item in value.items()}
    return _scalar(value) if isinstance(value, Plain) else str(value)


def _scalar(text: Plain) -> Json:
    if text in _NULL:
        return None
    if text in _TRUTH:
        return _TRUTH[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text) and not _LEADING_ZERO.match(text) and math.isfinite(float(text)):
        return float(text)
    return str(text)


def as_text_tree(value: Value) -> object:
    """Return `value` with every scalar as text, nothing as the empty text, for a typed field to read.

    Raises:
        WrongValue: a text holds a NUL character, which no argument or variable of a program can.
    """
    if isinstance(value, list):
        return [as_text_tree(item) for item in value]
    if isinstance(value, Block):
        return {str(key): as_text_tree(item) for key, item in value.items()}
    return "" if is_null(value) else as_text(value)


def as_text(value: Value) -> str:
    """Return the text as written.

    Raises:
        WrongValue: the value is a list or a mapping, or holds a NUL character.
    """
    if not isinstance(value, str):
        raise WrongValue("must be text")
    if "\0" in value:
        raise WrongValue("must not hold a NUL character")
    return str(value)


def as_names(value: Value) -> list[str]:
    """Return names given as a list or as a text with commas or spaces between them, each once.

    Text in brackets belongs to its name: `Bash(git diff:*, git log:*)` is a single name.

    Raises:
        WrongValue: the value is a mapping, or a list of anything but text.
    """
    if isinstance(value, Block):
        raise WrongValue("must be a list of names")
    if isinstance(value, list):
        return list(dict.fromkeys(name for item in value for name in _names_of(item)))
    if is_null(value):
        return []
    words = (word.strip("[]\"'") for word in _NAME.findall(as_text(value)))
    return list(dict.fromkeys(word for word in words if word and word != "-"))


def as_paths(value: Value) -> list[str]:
    """Return paths below a directory, or places elsewhere, from a list or a text with commas.

    Raises:
        WrongValue: the value is a mapping, a list of anything but text, or a path that leaves the directory.
    """
    return _paths(
        value,
        lambda path: _is_below(path) or _is_place(path),
        "must be paths below the working directory, or paths that begin with / or ~/",
    )


def as_places(value: Value) -> list[str]:
    """Return absolute paths, or paths below the home directory (`~/...`), from a list or a text with commas.

    Raises:
        WrongValue: the value is a mapping, a list of anything but text, or another kind of path.
    """
    return _paths(value, _is_place, "must be paths that begin with / or ~/")


def _paths(value: Value, is_right: Callable[[PurePosixPath], bool], rule: str) -> list[str]:
    written = value if isinstance(value, list) else [Plain(item) for item in as_text(value).split(",")]
    paths = [PurePosixPath(as_text(item).strip()) for item in written if not is_null(item)]
    if (wrong := next((path for path in paths if not is_right(path)), None)) is not None:
        raise WrongValue(f"{rule}, not {shorten(str(wrong))}")
    return list(dict.fromkeys(map(str, paths)))


def _is_below(path: PurePosixPath) -> bool:
    return bool(path.parts) and ".." not in path.parts and path.parts[0] not in ("/", "~")


def _is_place(path: PurePosixPath) -> bool:
    return len(path.parts) > 1 and path.parts[0] in ("/", "~") and ".." not in path.parts


def _names_of(item: Value) -> list[str]:
    """Return the names of one item of a list: spaces belong to a name (`Microsoft Docs`), commas do not."""
    if not isinstance(item, str):
        raise WrongValue("must be a list of names")
    if is_null(item):
        return []
    names = (name.strip() for name in _LISTED_NAME.findall(as_text(item)))
    return [name for name in names if name]
