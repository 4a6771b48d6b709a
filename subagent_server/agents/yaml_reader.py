"""What is read from a file that nobody trusts: its text, its YAML, the keys of agents, and the problems.

YAML is read by its standard, bounded, without types, and with line numbers.
"""

import json
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeAlias

import yaml
from pydantic import BaseModel
from pydantic.alias_generators import to_camel

from subagent_server.run.agent_definition import (
    AgentDefinition,
    CodeMode,
    FailIf,
    Limits,
    Placement,
    SandboxLimits,
    ServerDefinition,
    WebFetchBounds,
    WebSearchBounds,
)
from subagent_server.run.errors import OTHER_SPACES, CallerError, shorten, visible
from subagent_server.run.files import NotPlain, read_plain
from subagent_server.run.states import cut

# -- The values of a file before they have a type: text, lists and mappings.
#
# Every scalar stays the text as written, so an agent may be called `123`, `yes` or `2026-01-02`. The text
# is read as a number or a truth value only if the field wants this.


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
MOST_NAMES, LONGEST_NAME = 500, 1_000
"""Of one list: each name is compared with those that there are, and no file may hold up the others."""
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
    # `012` stays text: in YAML 1.1 it was ten, and people mean a code or a version by it
    if _FLOAT.fullmatch(text) and not _LEADING_ZERO.match(text) and math.isfinite(float(text)):
        return float(text)
    return str(text)


def from_json(value: Any, line: int = 1, depth: int = 0) -> Value:
    """Return JSON data, which is on a line of its file, as `parse` would return it. Raises Unreadable."""
    if depth > MAX_DEPTH:
        raise Unreadable(f"it is nested more than {MAX_DEPTH} deep")
    if isinstance(value, dict):
        block = Block()
        for key, item in value.items():
            block.put(_whole(key), from_json(item, line, depth + 1), line)
        return block
    if isinstance(value, list):
        return [from_json(item, line, depth + 1) for item in value]
    return _whole(value) if isinstance(value, str) else Plain(json.dumps(value))


def _whole(text: str) -> str:
    """Return `text` without half characters: no process can be started with one."""
    return text.encode("utf-8", "replace").decode()


def as_text_tree(value: Value) -> object:
    """Return `value` with every scalar as text, nothing as the empty text, for a typed field to read.

    Raises:
        WrongValue: a text holds a NUL character, which no argument or variable of a program can.
    """
    if isinstance(value, list):
        return [as_text_tree(item) for item in value]
    if isinstance(value, Block):
        return {as_text(key): as_text_tree(item) for key, item in value.items()}
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
    """Return names from a list or from a text with commas or spaces between them, each once.

    Text in brackets belongs to its name: `Bash(git diff:*, git log:*)` is a single name.

    Raises:
        WrongValue: the value is a mapping, a list of anything but text, or has too many or too long names.
    """
    if isinstance(value, Block):
        raise WrongValue("must be a list of names")
    if isinstance(value, list):
        names = dict.fromkeys(name for item in value for name in _names_of(item))
    else:
        words = (word.strip("[]\"'") for word in ([] if is_null(value) else _NAME.findall(as_text(value))))
        names = dict.fromkeys(word for word in words if word and word != "-")
    if len(names) > MOST_NAMES or any(len(name) > LONGEST_NAME for name in names):
        raise WrongValue(f"must have at most {MOST_NAMES} names of at most {LONGEST_NAME:,} characters")
    return list(names)


def as_paths(value: Value) -> list[str]:
    """Return paths below a directory, or paths elsewhere, from a list or a text with commas.

    Raises:
        WrongValue: the value is a mapping, a list of anything but text, or a path that leaves the directory.
    """
    return _paths(
        value,
        lambda path: _is_below(path) or _is_absolute(path),
        "must be paths below the working directory, or paths that begin with / or ~/, and have no `..`",
    )


def as_absolute_paths(value: Value) -> list[str]:
    """Return absolute paths, or paths below the home directory (`~/...`), from a list or a text with commas.

    Raises:
        WrongValue: the value is a mapping, a list of anything but text, or another kind of path.
    """
    return _paths(value, _is_absolute, "must be paths that begin with / or ~/ and have no `..`")


def _paths(value: Value, is_right: Callable[[PurePosixPath], bool], rule: str) -> list[str]:
    written = value if isinstance(value, list) else [Plain(item) for item in as_text(value).split(",")]
    paths = [PurePosixPath(as_text(item).strip()) for item in written if not is_null(item)]
    if (wrong := next((path for path in paths if not is_right(path)), None)) is not None:
        raise WrongValue(f"{rule}, not {shorten(str(wrong))}")
    return list(dict.fromkeys(map(str, paths)))


def _is_below(path: PurePosixPath) -> bool:
    return bool(path.parts) and ".." not in path.parts and path.parts[0] not in ("/", "~")


def _is_absolute(path: PurePosixPath) -> bool:
    return len(path.parts) > 1 and path.parts[0] in ("/", "~") and ".." not in path.parts


def _names_of(item: Value) -> list[str]:
    """Return the names of one item of a list: spaces belong to a name (`Microsoft Docs`), commas do not."""
    if not isinstance(item, str):
        raise WrongValue("must be a list of names")
    if is_null(item):
        return []
    names = (name.strip() for name in _LISTED_NAME.findall(as_text(item)))
    return [name for name in names if name]


MAX_DEPTH = 60
MAX_VALUES = 20_000
"""Of an agent file: as many are read in a twentieth of a second. Files of cases may have more."""

_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
_TAGS = frozenset(
    f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "null", "map", "seq")
)
_MERGE = "<<"
_SURROGATE = re.compile("[\ud800-\udfff]")


class NotYaml(Exception):
    """A text is not YAML as it is read here; `line` counts from 1."""

    def __init__(self, reason: str, line: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.line = line


class NotReadHere(NotYaml):
    """It is YAML, but of a kind that is not read, because its author probably meant something else."""


def parse(text: str, first_line: int = 1, most_values: int = MAX_VALUES) -> Value:
    """Return the one document in `text`, whose first line is line `first_line` of its file.

    Raises:
        NotYaml: it is not YAML, has more than one document, an alias, or more or deeper values than any
            agent needs.
    """
    try:
        _check_bounds(text, first_line, most_values)
        node = yaml.compose(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        message = " ".join(part for part in (error.problem, error.context) if part)
        raise NotYaml(message, first_line + _blamed_line(error)) from error
    except yaml.YAMLError as error:  # a character that no YAML text may hold
        before = text.encode().count(b"\n", 0, getattr(error, "position", 0))
        code = getattr(error, "character", "?")
        raise NotYaml(f"a control character (code {code})", first_line + before) from error
    return Plain("") if node is None else _value(node, first_line)


def _blamed_line(error: yaml.MarkedYAMLError) -> int:
    """Return the line, from 0, at which an endless key or quote begins, else at which it was noticed."""
    is_unfinished = (error.context or "").startswith("while scanning a")
    first, second = error.problem_mark, error.context_mark
    mark = (second or first) if is_unfinished else (first or second)
    return mark.line if mark else 0


def _check_bounds(text: str, first_line: int, most_values: int) -> None:
    """Look at the events of the parser, which come one by one: composing nodes recurses, and needs them all.

    Without aliases no value can multiply ("billion laughs").
    """
    count, depth, documents = 0, 0, 0
    for event in yaml.parse(text, Loader=_LOADER):
        line = first_line + (event.start_mark.line if event.start_mark else 0)
        if isinstance(event, yaml.AliasEvent):
            reason = f"*{event.anchor} is an alias, which is not read here: write the value out"
            raise NotReadHere(reason, line)
        documents += isinstance(event, yaml.DocumentStartEvent)
        if documents > 1:
            raise NotYaml("a second document begins here, and one file holds one agent", line)
        count += isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent)
        if count > most_values:
            raise NotYaml(f"more than {most_values:,} values", line)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise NotYaml(f"nested more than {MAX_DEPTH} deep", line)


def _value(node: yaml.Node, first_line: int) -> Value:
    line = first_line + node.start_mark.line
    if node.tag not in _TAGS:
        raise NotReadHere(f"the tag {node.tag} means nothing here", line)
    if isinstance(node, yaml.ScalarNode):
        if _SURROGATE.search(node.value):  # libyaml refuses it; the loader in Python does not
            raise NotYaml("an escape that is half a character", line)
        return str(node.value) if node.style else Plain(node.value)
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, first_line) for item in node.value]
    block = Block()
    for key_node, value_node in node.value:
        key, line = _value(key_node, first_line), first_line + key_node.start_mark.line
        if not isinstance(key, str):
            raise NotYaml("a key must be text", line)
        if isinstance(key, Plain) and key == _MERGE:
            raise NotReadHere("<< is a merge key, which is not read here: write its keys out", line)
        block.put(str(key), _value(value_node, first_line), line)
    return block


# -- The keys of agent files, and how they may be spelled.
#
# `maxTurns`, `max_turns`, `max-turns` and `MaxTurns` are the same key. Which keys exist follows from the
# fields of the domain's definitions, so a new field needs no second list here.


_NOT_FOR_FILES = frozenset(
    {"source", "distinct_tool", "by_contract", "faults", "warnings", "unknown", "named_servers", "verdict"}
    | {"read_from", "lines", "permission_mode", "served", "input_schema", "program_hash", "other_models"}
)
_FILES_ONLY = ("system_prompt_path", "output_schema_path")


def canonical(key: str) -> str:
    """Return the form in which two spellings of one key are equal."""
    return key.replace("-", "").replace("_", "").lower()


@cache
def camel(field: str) -> str:
    """Return the spelling that people are shown."""
    return to_camel(field)


def table(fields: Iterable[str]) -> Mapping[str, str]:
    """Return canonical spelling -> field name."""
    return {canonical(field): field for field in fields}


def fields_of(kind: type[BaseModel]) -> Mapping[str, str]:
    """Return the keys of one part of a definition: canonical spelling -> field name."""
    return table(kind.model_fields)


LIMIT_FIELDS = fields_of(Limits)
AGENT_FIELDS = {
    **table([*(f for f in AgentDefinition.model_fields if f not in _NOT_FOR_FILES), *_FILES_ONLY]),
    "allowedtools": "tools",
}
"""`allowed-tools` is what skills of Claude Code call it."""

PARTS: Mapping[str, type[BaseModel]] = {
    "limits": Limits,
    "code_mode": CodeMode,
    "mcp_servers": ServerDefinition,
    "sandbox_limits": SandboxLimits,
    "placement": Placement,
    "web_search": WebSearchBounds,
    "web_fetch": WebFetchBounds,
    "fail_if": FailIf,
}
"""The parts of an agent file that have keys of their own, by their fields; of the servers, each of them."""
_KEYS_OF_PARTS: Mapping[str, Mapping[str, str]] = {
    "": {**LIMIT_FIELDS, **AGENT_FIELDS, "permissionmode": "permission_mode"},
    **{camel(field): fields_of(kind) for field, kind in PARTS.items()},
}
_MOST_COMPARED = 60
_LEAST_LIKENESS = 0.8

_SURE = frozenset(
    {"background", "color", "initialprompt", "memory", "permissionmode", "skills"}
    | {"approvalmode", "permission", "readonly"}
)
"""Keys of Claude Code, and guards of other tools, in canonical spelling: no prose begins with such a word."""
_ELSEWHERE = frozenset(
    {"argumenthint", "author", "category", "icon", "license", "metadata", "mode", "priority", "tags"}
    | {"temperature", "type", "version"}
)
"""Keys of other tools that mean nothing here, in canonical spelling."""


def is_ours(key: str) -> bool:
    """Whether `key`, in any spelling, means something here."""
    form = canonical(key)
    return form in AGENT_FIELDS or form in LIMIT_FIELDS


def is_surely_a_key(key: str) -> bool:
    """Whether a line `key: ...` is a key even if prose runs on at the margin."""
    return key[0].islower() and (is_ours(key) or canonical(key) in _SURE)


def nearest_key(key: str) -> str | None:
    """Return the key that an unknown one probably means, which has its part before it: `limits.key`."""
    part, _, name = key.rpartition(".")
    form = canonical(name)[:_MOST_COMPARED]
    if form in _SURE or form in _ELSEWHERE:
        return None
    known = _KEYS_OF_PARTS.get(part.partition(".")[0], {})
    near = get_close_matches(form, known, 1, _LEAST_LIKENESS)
    return camel(known[near[0]]) if near else None


def is_known(key: str) -> bool:
    """Whether `key`, in any spelling, is a key of agent files, here or in another tool."""
    return is_ours(key) or canonical(key) in _SURE or canonical(key) in _ELSEWHERE


# -- Front matter beyond strict YAML, as in most agent files in the wild.
#
# Examples are a description with unquoted colons, `<example>` dialogues without indentation, quotes inside
# quotes, tabs for indentation. The text is cut at its top-level keys, and each piece is read as YAML by
# itself. A piece that is not YAML even then counts as plain text.


_KEY = re.compile(
    r"""(?P<quote>["']?)(?P<key>[A-Za-z][\w-]{0,60}|<<)(?P=quote)[ \t]*:(?:[ \t]+(?P<rest>.*))?"""
)
_INDENTED_KEY = re.compile(rf"(?P<indent>[ \t]+){_KEY.pattern}")
_DIALOGUE = frozenset({"assistant", "commentary", "context", "example", "examples", "human", "note", "user"})
_ESCAPES = {"n": "\n", "t": "\t", '"': '"', "\\": "\\"}
_ESCAPED = re.compile(r'\\([nt"\\])')
_TEXT = frozenset({"name", "description"})


MOST_KEYS = 1_000
"""Each is read by itself, which takes a third of a millisecond."""


class _Piece:
    """A key with its lines.

    A piece `is_prose` if its lines run on unindented: then a `word:` at the margin may be part of the text.
    """

    def __init__(self, key: str, line: int, first: str, indent: str = "") -> None:
        self.key = key
        self.line = line
        self.first = first
        self.indent = indent
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
    """The lines under no key and of indented keys, the understood values, and the broken parts left out."""

    stray: list[int]
    indented: list[int]
    block: Block = field(default_factory=Block)
    broken: list[NotYaml] = field(default_factory=list)


def parse_leniently(text: str, first_line: int) -> LenientRead | None:
    """Return the keys of front matter that is not YAML as a whole; None without any of agent files, or with
    more keys than any has.

    `first_line` is the line of the file on which `text` begins.
    """
    lines = textwrap.dedent(text).split("\n")
    pieces, stray = _pieces(lines, first_line)
    if len(pieces) > MOST_KEYS or not any(is_known(piece.key) for piece in pieces):
        return None
    read = LenientRead(stray, [piece.line for piece in pieces if piece.indent])
    for piece in pieces:
        try:
            read.block.put(piece.key, _value_of_piece(piece), piece.line)
        except NotYaml as error:
            read.broken.append(NotYaml(f"{piece.key} cannot be read ({error.reason})", error.line))
    return read


def _pieces(lines: list[str], first_line: int) -> tuple[list[_Piece], list[int]]:
    pieces: list[_Piece] = []
    stray: list[int] = []
    seen: set[str] = set()
    for number, line in enumerate(lines, first_line):
        match = _KEY.fullmatch(line)
        if match and _begins_piece(match["key"], pieces[-1] if pieces else None):
            pieces.append(_Piece(match["key"], number, match["rest"] or ""))
            seen.add(canonical(match["key"]))
        elif pieces and (match := _indented_key(line, pieces[-1], seen)):
            pieces.append(_Piece(match["key"], number, match["rest"] or "", match["indent"]))
            seen.add(canonical(match["key"]))
        elif pieces:
            pieces[-1].add(line)
        elif line.strip() and not line.lstrip().startswith("#"):
            stray.append(number)
    return pieces, stray


def _begins_piece(key: str, current: _Piece | None) -> bool:
    if key == _MERGE:
        return True
    if current is not None and current.is_prose:
        return is_surely_a_key(key)
    return is_known(key) or (key[0].islower() and key.lower() not in _DIALOGUE)


def _indented_key(line: str, above: _Piece, seen: set[str]) -> re.Match[str] | None:
    """Return the parts of a key that is indented by mistake: no guard may end as words of a description."""
    match = _INDENTED_KEY.fullmatch(line)
    if match is None or canonical(match["key"]) in seen or not is_surely_a_key(match["key"]):
        return None
    is_below_text = canonical(above.key) in _TEXT and not above.is_prose and above.first[:1] not in "|>'\""
    return match if is_below_text or above.indent == match["indent"] else None


def _value_of_piece(piece: _Piece) -> Value:
    """Return the value of a piece: as YAML if it is YAML, else its text.

    Raises:
        NotYaml: the piece is not prose, and its YAML spans lines and is broken, or is not read here: the
            meaning cannot be known.
    """
    trouble: NotYaml | None = None
    is_text = canonical(piece.key) in _TEXT
    written = "\n".join([f"{piece.key}: {piece.first}", *piece.more])
    for source in (written, written.expandtabs(2)) if "\t" in written else (written,):
        try:
            whole = parse(source, piece.line)
        except NotYaml as error:
            trouble = trouble or error
            continue
        if isinstance(whole, Block) and list(whole) == [piece.key]:
            value = whole[piece.key]
            if isinstance(value, str) or not is_text:
                return value
    is_unclear = isinstance(trouble, NotReadHere) or any(line.strip() for line in piece.more)
    if trouble is not None and not is_text and is_unclear:
        raise trouble
    return _raw_text(piece)


def _raw_text(piece: _Piece) -> str:
    text = "\n".join([piece.first.strip(), textwrap.dedent("\n".join(piece.more))]).strip()
    if len(text) > 1 and text[0] == text[-1] == '"':
        return _ESCAPED.sub(lambda match: _ESCAPES[match[1]], text[1:-1])
    if len(text) > 1 and text[0] == text[-1] == "'":
        return text[1:-1].replace("''", "'")
    return Plain(text)


# -- The problems of an agent file, and how they are reported.


Kind = Literal["error", "skipped", "shadowed", "duplicate", "fault", "warning"]
"""`error`: not understood. `skipped`: not an agent, or the same agent as another file. `shadowed`,
`duplicate`: an earlier directory, an earlier file has its name. `fault`: loaded, but its run is refused.
`warning`: loaded, and it runs."""


@dataclass(frozen=True)
class Problem:
    """Something to know about one file or directory; `line` counts from 1, `agent` is the name in it."""

    path: Path
    line: int | None
    kind: Kind
    reason: str
    agent: str | None = None


@dataclass(frozen=True)
class Note:
    """A mistake in a file that loads all the same."""

    kind: Literal["fault", "warning"]
    line: int | None
    reason: str


@dataclass
class Notes:
    """Collects the problems that are found while one file is read."""

    found: list[Note] = field(default_factory=list)

    def fault(self, reason: str, line: int | None = None) -> None:
        """Record a mistake for which the run of this agent is refused."""
        self.found.append(Note("fault", line, _as_reason(reason)))

    def warn(self, reason: str, line: int | None = None) -> None:
        """Record a warning, which stops nothing."""
        self.found.append(Note("warning", line, _as_reason(reason)))

    def reasons(self, kind: Literal["fault", "warning"]) -> list[str]:
        """Return the sentences of one kind, in the order they were found."""
        return [note.reason for note in self.found if note.kind == kind]


def _as_reason(reason: str) -> str:
    """Return a reason as text for a listing: it may hold a key or a value of the file."""
    return cut(visible(reason, OTHER_SPACES))


class AgentFileError(CallerError):
    """An agent file that cannot be used; `line` counts from 1, if a line is to blame."""

    code = "bad_agent_file"

    def __init__(self, path: Path, reason: str, line: int | None = None) -> None:
        reason = _as_reason(" ".join(reason.split()))
        where = f"{shown(path)}, line {line}," if line else shown(path)
        super().__init__(f"{where} is not a usable agent file: {reason}.")
        self.path = path
        self.line = line
        self.reason = reason


class NotAnAgent(AgentFileError):
    """A readable file that does not set out to be an agent: a README, another tool's YAML."""

    code = "not_an_agent"


def shown(path: Path) -> str:
    """Return `path` as text that can be written anywhere, whatever bytes its name has."""
    return str(path).encode("utf-8", "backslashreplace").decode("utf-8")


def why(error: OSError) -> str:
    """Return the reason of the system, in its words and in lower case."""
    return (error.strerror or type(error).__name__).lower()


# -- Reading untrusted text from a path of any kind.


MAX_BYTES = 4 << 20
"""An agent file, a prompt or a schema larger than this is refused."""

_BOM = b"\xef\xbb\xbf"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


class Unreadable(Exception):
    """The reason why a file has no text; `line` counts from 1, if a line is to blame."""

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.line = line


def read_text(path: Path, most: int = MAX_BYTES) -> str:
    r"""Return the UTF-8 text of a regular file, without its byte order mark and with `\n` line ends.

    Raises:
        Unreadable: it is missing, no regular file, larger than `most` bytes, or not UTF-8 text.
    """
    try:
        data, _ = read_plain(path, most)
    except NotPlain as error:
        raise Unreadable(str(error.strerror)) from error
    except BlockingIOError as error:
        raise Unreadable("it has nothing to read now, so it is not a file of text") from error
    except OSError as error:
        raise Unreadable(f"it cannot be read ({why(error)})") from error
    except ValueError as error:  # a path with a NUL in it
        raise Unreadable("its path cannot be opened") from error
    return _decode(data).replace("\r\n", "\n").replace("\r", "\n")


def _decode(data: bytes) -> str:
    if data.startswith(_UTF16):
        raise Unreadable("it looks like UTF-16, so save it as UTF-8", 1)
    try:
        text = data.removeprefix(_BOM).decode("utf-8")
    except UnicodeDecodeError as error:
        bad = error.object[error.start]
        line = error.object.count(b"\n", 0, error.start) + 1
        at = error.start + len(data) - len(error.object)
        raise Unreadable(f"byte {at} (0x{bad:02x}) is not UTF-8, so save it as UTF-8", line) from error
    before, nul, _ = text.partition("\0")
    if nul:
        raise Unreadable("it holds a NUL character, so it is not text", before.count("\n") + 1)
    return text
