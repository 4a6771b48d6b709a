"""Parse YAML that is not trusted: by its standard, bounded, without types, with line numbers.

Built on parser events, not on a loader: a deep nesting, a chain of aliases that multiplies ("billion
laughs") or a tag that names a class is refused before anything large exists.
"""

import re
from collections.abc import Iterator

import yaml

from subagent_server.catalog.values import Block, Plain, Value

MAX_DEPTH = 60
MAX_VALUES = 20_000
"""Of an agent file: as many are read in a twentieth of a second. Files of cases may have more."""

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_CORE = "tag:yaml.org,2002:"
_COLLECTIONS = frozenset({_CORE + "map", _CORE + "seq", "!"})
_UNTYPED = frozenset({_CORE + name for name in ("int", "float", "bool", "null")})
_TEXT = frozenset({_CORE + "str", "!"})
_SURROGATE = re.compile("[\ud800-\udfff]")


class NotYaml(Exception):
    """A text is not YAML as it is read here; `line` counts from 1."""

    def __init__(self, reason: str, line: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.line = line


def parse(text: str, first_line: int = 1, most_values: int = MAX_VALUES) -> Value:
    """Return the one document in `text`, whose first line is line `first_line` of its file.

    Raises:
        NotYaml: it is not YAML, has more than one document, or more or deeper values than any agent needs.
    """
    builder = _Builder(text, first_line, most_values)
    try:
        return builder.document()
    except yaml.MarkedYAMLError as error:
        raise NotYaml(_plain_words(error), first_line + _blamed_line(error)) from error
    except yaml.YAMLError as error:  # a character that no YAML text may hold
        position = getattr(error, "position", 0)
        raise NotYaml(
            f"a control character (code {getattr(error, 'character', '?')})",
            first_line + text.encode().count(b"\n", 0, position),
        ) from error
    finally:
        builder.close()


def _plain_words(error: yaml.MarkedYAMLError) -> str:
    return " ".join(part for part in (error.problem, error.context) if part)


def _blamed_line(error: yaml.MarkedYAMLError) -> int:
    """Return the line, from 0, at which an endless key or quote begins, else at which it was noticed."""
    is_unfinished = (error.context or "").startswith("while scanning a")
    first, second = error.problem_mark, error.context_mark
    mark = (second or first) if is_unfinished else (first or second)
    return mark.line if mark else 0


class _Builder:
    """Turns the events of one text into values."""

    def __init__(self, text: str, first_line: int, most_values: int) -> None:
        self._events: Iterator[yaml.Event] = yaml.parse(text, Loader=_LOADER)
        self._first_line = first_line
        self._anchors: dict[str, tuple[Value, int]] = {}
        self._count = 0
        self._most_values = most_values

    def close(self) -> None:
        self._events.close()  # type: ignore[attr-defined]  # it is a generator

    def document(self) -> Value:
        next(self._events)
        start = next(self._events)
        if isinstance(start, yaml.StreamEndEvent):
            return Plain("")
        value = self._value(next(self._events), 0)
        next(self._events)
        after = next(self._events)
        if not isinstance(after, yaml.StreamEndEvent):
            raise NotYaml("a second document begins here, and one file holds one agent", self._line(after))
        return value

    def _line(self, event: yaml.Event) -> int:
        mark = event.start_mark
        return self._first_line + (mark.line if mark else 0)

    def _value(self, event: yaml.Event, depth: int) -> Value:
        self._admit(event, 1, depth)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event)
        before = self._count
        value = self._new_value(event, depth)
        anchor = getattr(event, "anchor", None)
        if anchor:
            self._anchors[anchor] = value, self._count - before + 1
        return value

    def _new_value(self, event: yaml.Event, depth: int) -> Value:
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event)
        if event.tag not in _COLLECTIONS and event.tag is not None:  # type: ignore[attr-defined]
            raise NotYaml(f"the tag {event.tag} means nothing here", self._line(event))  # type: ignore[attr-defined]
        if isinstance(event, yaml.SequenceStartEvent):
            return list(self._items(depth))
        return self._block(depth)

    def _admit(self, event: yaml.Event, count: int, depth: int = 0) -> None:
        self._count += count
        if self._count > self._most_values:
            raise NotYaml(f"more than {self._most_values:,} values, aliases included", self._line(event))
        if depth > MAX_DEPTH:
            raise NotYaml(f"nested more than {MAX_DEPTH} deep", self._line(event))

    def _alias(self, event: yaml.AliasEvent) -> Value:
        known = self._anchors.get(event.anchor or "")
        if known is None:
            raise NotYaml(f"*{event.anchor} refers to nothing above it", self._line(event))
        self._admit(event, known[1])
        return known[0]

    def _scalar(self, event: yaml.ScalarEvent) -> str:
        text = str(event.value)
        if _SURROGATE.search(text):  # libyaml refuses it; the loader in Python does not
            raise NotYaml("an escape that is half a character", self._line(event))
        if event.tag is None or event.tag in _UNTYPED:
            return Plain(text) if event.implicit[0] or event.tag in _UNTYPED else text
        if event.tag not in _TEXT:
            raise NotYaml(f"the tag {event.tag} means nothing here", self._line(event))
        return text

    def _items(self, depth: int) -> Iterator[Value]:
        for event in self._events:
            if isinstance(event, yaml.SequenceEndEvent):
                return
            yield self._value(event, depth + 1)

    def _block(self, depth: int) -> Block:
        block, merged = Block(), list[Block]()
        for event in self._events:
            if isinstance(event, yaml.MappingEndEvent):
                break
            key = self._value(event, depth + 1)
            if not isinstance(key, str):
                raise NotYaml("a key must be text", self._line(event))
            value = self._value(next(self._events), depth + 1)
            if isinstance(key, Plain) and key == "<<":
                merged += self._bases(value, event)
            else:
                block.put(str(key), value, self._line(event))
        _merge(block, merged)
        return block

    def _bases(self, value: Value, event: yaml.Event) -> list[Block]:
        bases = [base for base in (value if isinstance(value, list) else [value]) if isinstance(base, Block)]
        if not bases:
            raise NotYaml("<< must name a mapping", self._line(event))
        return bases


def _merge(block: Block, bases: list[Block]) -> None:
    """Add the keys of `bases` that `block` lacks, the first base first."""
    for base in bases:
        for key, value in base.items():
            if key not in block:
                block.put(key, value, base.lines[key])
