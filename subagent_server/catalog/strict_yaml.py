"""Parse YAML that is not trusted: by its standard, bounded, without types, with line numbers."""

import re

import yaml

from subagent_server.catalog.values import Block, Plain, Value

MAX_DEPTH = 60
MAX_VALUES = 20_000
"""Of an agent file: as many are read in a twentieth of a second. Files of cases may have more."""

_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
_TAGS = frozenset(
    f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "null", "map", "seq")
)
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
        NotYaml: it is not YAML, has more than one document, an alias, or more or deeper values than any
            agent needs.
    """
    try:
        _check_bounds(text, first_line, most_values)
        node = yaml.compose(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        told = " ".join(part for part in (error.problem, error.context) if part)
        raise NotYaml(told, first_line + _blamed_line(error)) from error
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
            raise NotYaml(f"*{event.anchor} is an alias, which is not read here: write the value out", line)
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
        raise NotYaml(f"the tag {node.tag} means nothing here", line)
    if isinstance(node, yaml.ScalarNode):
        if _SURROGATE.search(node.value):  # libyaml refuses it; the loader in Python does not
            raise NotYaml("an escape that is half a character", line)
        return str(node.value) if node.style else Plain(node.value)
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, first_line) for item in node.value]
    block = Block()
    for key_node, value_node in node.value:
        key = _value(key_node, first_line)
        if not isinstance(key, str):
            raise NotYaml("a key must be text", first_line + key_node.start_mark.line)
        block.put(str(key), _value(value_node, first_line), first_line + key_node.start_mark.line)
    return block
