r"""Front matter beyond strict YAML, as in most agent files in the wild.

Examples are a description with unquoted colons, `<example>` dialogues without indentation, quotes inside
quotes, tabs for indentation. The text is cut at its top-level keys, and each piece is read as YAML by itself.
A piece that is not YAML even then counts as plain text.
"""

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field

from subagent_server.catalog.keys import canonical, is_known, is_surely_a_key
from subagent_server.catalog.strict_yaml import NotYaml, parse
from subagent_server.catalog.values import Block, Plain, Value

_KEY = re.compile(r"""(?P<quote>["']?)(?P<key>[A-Za-z][\w-]{0,60})(?P=quote)[ \t]*:(?:[ \t]+(?P<rest>.*))?""")
_DIALOGUE = frozenset({"assistant", "commentary", "context", "example", "examples", "human", "note", "user"})
_ESCAPES = {"n": "\n", "t": "\t", '"': '"', "\\": "\\"}
_ESCAPED = re.compile(r'\\([nt"\\])')
_TEXT = frozenset({"name", "description"})


class _Piece:
    """A key with its lines.

    A piece `is_prose` if its lines run on unindented: then a `word:` at the margin may be part of the text.
    """

    def __init__(self, key: str, line: int, first: str) -> None:
        self.key = key
        self.line = line
        self.first = first
        self.more: list[str] = []
        self.is_prose = self._may_be_prose and (
            first.rstrip().endswith(":") or first.count("<example") > first.count("</example")
        )

    @property
    def _may_be_prose(self) -> bool:
        return canonical(self.key) == "description"

    def add(self, line: str) -> None:
        self.more.append(line)
        if line.strip() and not line[0].isspace():
            self.is_prose = self._may_be_prose


@dataclass
class LenientRead:
    """The understood values, the lines under no key, and the broken parts left out."""

    block: Block = field(default_factory=Block)
    stray: list[int] = field(default_factory=list)
    broken: list[NotYaml] = field(default_factory=list)


def parse_leniently(text: str, first_line: int) -> LenientRead | None:
    """Return the keys of front matter that is not YAML as a whole; None without any key of agent files.

    `first_line` is the line of the file on which `text` begins.
    """
    lines = textwrap.dedent(text).split("\n")
    pieces, stray = _cut(lines, first_line)
    if not any(is_known(piece.key) for piece in pieces):
        return None
    read = LenientRead(stray=stray)
    for piece in pieces:
        try:
            read.block.put(piece.key, _value(piece), piece.line)
        except NotYaml as error:
            read.broken.append(NotYaml(f"{piece.key} cannot be read ({error.reason})", error.line))
    return read


def _cut(lines: list[str], first_line: int) -> tuple[list[_Piece], list[int]]:
    pieces: list[_Piece] = []
    stray: list[int] = []
    for number, line in enumerate(lines, first_line):
        match = _KEY.fullmatch(line)
        if match and _begins_piece(match["key"], pieces[-1] if pieces else None):
            pieces.append(_Piece(match["key"], number, match["rest"] or ""))
        elif pieces:
            pieces[-1].add(line)
        elif line.strip() and not line.lstrip().startswith("#"):
            stray.append(number)
    return pieces, stray


def _begins_piece(key: str, current: _Piece | None) -> bool:
    if current is not None and current.is_prose:
        return is_surely_a_key(key)
    return is_known(key) or (key[0].islower() and key.lower() not in _DIALOGUE)


def _value(piece: _Piece) -> Value:
    """Return the value of a piece: as YAML if it is YAML, else its text.

    Raises:
        NotYaml: the piece spans lines, is not prose, and its YAML is broken: the meaning cannot be known.
    """
    trouble: NotYaml | None = None
    for source in _readings(piece):
        try:
            whole = parse(source, piece.line)
        except NotYaml as error:
            trouble = trouble or error
            continue
        if isinstance(whole, Block) and list(whole) == [piece.key] and _fits(piece.key, whole[piece.key]):
            return whole[piece.key]
    if trouble is not None and canonical(piece.key) not in _TEXT and any(line.strip() for line in piece.more):
        raise trouble
    return _raw_text(piece)


def _readings(piece: _Piece) -> Iterator[str]:
    source = "\n".join([f"{piece.key}: {piece.first}", *piece.more])
    yield source
    if "\t" in source:
        yield source.expandtabs(2)


def _fits(key: str, value: Value) -> bool:
    return isinstance(value, str) or canonical(key) not in _TEXT


def _raw_text(piece: _Piece) -> str:
    text = "\n".join([piece.first.strip(), textwrap.dedent("\n".join(piece.more))]).strip()
    if len(text) > 1 and text[0] == text[-1] == '"':
        return _ESCAPED.sub(lambda match: _ESCAPES[match[1]], text[1:-1])
    if len(text) > 1 and text[0] == text[-1] == "'":
        return text[1:-1].replace("''", "'")
    return Plain(text)
