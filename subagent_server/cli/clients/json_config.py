"""Edit a JSON file of another program: set or remove the entry of a server or an item of a list.

Every other byte is kept.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from subagent_server.cli.clients.config_errors import NotEditable

SERVERS = "mcpServers"
_SPACE = " \t\r\n"
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


def read_entry(text: str, server: str) -> Any:
    """Return the entry of a server, or None if there is none.

    Raises:
        NotEditable: the text is not strict JSON, or its servers are not an object.
    """
    return _servers(_parsed(text)).get(server) if text.strip() else None


def with_entry(text: str, server: str, entry: dict[str, Any]) -> str:
    """Return `text` with the entry of a server set.

    Raises:
        NotEditable: as `read_entry`, or the entry cannot be set without touching the rest.
    """
    if not text.strip():
        return snippet(server, entry)
    wanted = _parsed(text)
    _servers(wanted)  # refuses servers that are not an object
    wanted.setdefault(SERVERS, {})[server] = entry
    return _checked(_edited(text, server, entry), wanted)


def snippet(server: str, entry: dict[str, Any]) -> str:
    """Return a whole file with this server alone."""
    return json.dumps({SERVERS: {server: entry}}, indent=2, ensure_ascii=False) + "\n"


def with_listed(text: str, path: Sequence[str], item: str) -> str:
    """Return `text` with `item` in the list at `path`; the list and the objects around it may be missing.

    Raises:
        NotEditable: the text is not strict JSON, has something else at the path, or cannot be changed
            without touching the rest.
    """
    wanted = _parsed(text) if text.strip() else {}
    place: Any = wanted
    for key in path[:-1]:
        place = place.setdefault(key, {})
        if not isinstance(place, dict):
            raise NotEditable(f"its {key} is no object")
    listed = place.setdefault(path[-1], [])
    if not isinstance(listed, list):
        raise NotEditable(f"its {'.'.join(path)} is no list")
    if item in listed:
        return text
    listed.append(item)
    if not text.strip():
        return json.dumps(wanted, indent=2, ensure_ascii=False) + "\n"
    return _checked(_with_item(text, path, item), wanted)


def without_entry(text: str, server: str) -> str:
    """Return `text` without the entry of a server, and without the servers if it was the only one.

    Raises:
        NotEditable: as `with_entry`.
    """
    wanted = _parsed(text)
    servers = _servers(wanted)
    if server not in servers:
        return text
    del servers[server]
    if not servers:
        del wanted[SERVERS]
    return _without(text, (SERVERS, server), wanted)


def without_listed(text: str, path: Sequence[str], item: str) -> str:
    """Return `text` without `item` in the list at `path`, and without what holds nothing else.

    Raises:
        NotEditable: as `with_listed`.
    """
    wanted = _parsed(text) if text.strip() else {}
    around: list[dict[str, Any]] = [wanted]
    for key in path[:-1]:
        inner = around[-1].get(key)
        if not isinstance(inner, dict):
            return text
        around.append(inner)
    listed = around[-1].get(path[-1])
    if not isinstance(listed, list) or item not in listed:
        return text
    listed.remove(item)
    if listed:
        return _checked(_without_item(text, path, item), wanted)
    depth = len(path)
    while depth and not around[depth - 1].get(path[depth - 1]):
        del around[depth - 1][path[depth - 1]]
        depth -= 1
    return _without(text, path[: depth + 1], wanted)


def holds_nothing(text: str) -> bool:
    """Whether a text is an object without members, or blank."""
    return not text.strip() or _parsed(text) == {}


def _without(text: str, path: Sequence[str], wanted: dict[str, Any]) -> str:
    """Return `text` without the member at `path`, and the objects around it that hold nothing else."""
    objects = [_object_at(text, _after_space(text, 0))]
    for key in path[:-1]:
        member = objects[-1].last(key)
        if member is None:
            return text
        objects.append(_object_at(text, member.value))
    depth = len(objects) - 1
    while depth and len(objects[depth].members) == 1:
        depth -= 1
    target, key = objects[depth], path[depth]
    member = target.last(key)
    if member is None:
        return text
    spans = [(each.start, each.end) for each in target.members]
    return _checked(_cut_out(text, target.start, target.end, spans, target.members.index(member)), wanted)


def _without_item(text: str, path: Sequence[str], item: str) -> str:
    target = _object_at(text, _after_space(text, 0))
    for key in path[:-1]:
        target = _object_at(text, _value_of(target, key))
    start = _value_of(target, path[-1])
    spans = list(_items(text, start))
    index = next(i for i, (begin, end) in enumerate(spans) if json.loads(text[begin:end]) == item)
    return _cut_out(text, start, _after_space(text, spans[-1][1]), spans, index)


def _value_of(target: Object, key: str) -> int:
    member = target.last(key)
    if member is None:
        raise NotEditable(f"its {key} cannot be found")
    return member.value


def _cut_out(text: str, start: int, end: int, spans: Sequence[tuple[int, int]], index: int) -> str:
    """Return `text` without one of the parts between the brackets at `start` and `end`."""
    if index > 0:
        return text[: spans[index - 1][1]] + text[spans[index][1] :]
    if len(spans) > 1:
        return text[: spans[0][0]] + text[spans[1][0] :]
    return text[: start + 1] + text[end:]


def _checked(changed: str, wanted: dict[str, Any]) -> str:
    if _parsed(changed) != wanted:
        raise NotEditable("it cannot be changed without touching the rest")
    return changed


def _parsed(text: str) -> dict[str, Any]:
    try:
        data = json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise NotEditable(f"it is not strict JSON ({error.msg})", error.lineno) from error
    except (ValueError, RecursionError) as error:
        raise NotEditable(f"it is not strict JSON ({error})") from error
    if not isinstance(data, dict):
        raise NotEditable("it holds no JSON object")
    return data


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _servers(data: dict[str, Any]) -> dict[str, Any]:
    servers = data.get(SERVERS, {})
    if not isinstance(servers, dict):
        raise NotEditable(f"its {SERVERS} is no object")
    return servers


def _edited(text: str, server: str, entry: dict[str, Any]) -> str:
    style = _Style.of(text)
    whole = _object_at(text, _after_space(text, 0))
    servers = whole.last(SERVERS)
    if servers is None:
        return _inserted(text, whole, SERVERS, {server: entry}, style)
    present = _object_at(text, servers.value)
    old = present.last(server)
    if old is None:
        return _inserted(text, present, server, entry, style)
    indent = _indent_of(text, old.start)
    value = json.dumps(entry, ensure_ascii=False) if indent is None else style.dumped(entry, indent)
    return text[: old.value] + value + text[old.end :]


def _with_item(text: str, path: Sequence[str], item: str) -> str:
    style = _Style.of(text)
    target = _object_at(text, _after_space(text, 0))
    for depth, key in enumerate(path):
        member = target.last(key)
        if member is None:
            value: Any = [item]
            for inner in reversed(path[depth + 1 :]):
                value = {inner: value}
            return _inserted(text, target, key, value, style)
        if depth + 1 == len(path):
            return _appended(text, member, item, style)
        target = _object_at(text, member.value)
    return text


def _appended(text: str, member: Member, item: str, style: "_Style") -> str:
    """Return `text` with a new last item in the list that is the value of a member, laid out as the last."""
    word = json.dumps(item, ensure_ascii=False)
    present = text[member.value : member.end - 1].rstrip(_SPACE)
    if present == "[":
        return f"{text[: member.value]}[{word}]{text[member.end :]}"
    place = member.value + len(present)
    between = f",{style.newline}{_line_indent(text, place)}" if "\n" in present else ", "
    return f"{text[:place]}{between}{word}{text[place:]}"


@dataclass(frozen=True)
class _Style:
    """How a text is laid out: one step of indentation (None: all on one line), and its line ends."""

    step: str | None
    newline: str

    @classmethod
    def of(cls, text: str) -> "_Style":
        whole = _object_at(text, _after_space(text, 0))
        newline = "\r\n" if "\r\n" in text else "\n"
        if not whole.members:
            return cls("  ", newline)
        step = _indent_of(text, whole.members[0].start)
        return cls(None if step is None else step or "  ", newline)

    def dumped(self, value: Any, indent: str) -> str:
        """Return a value as JSON text whose lines after the first are indented."""
        lines = json.dumps(value, indent=self.step, ensure_ascii=False).split("\n")
        return f"{self.newline}{indent}".join(lines)


def _inserted(text: str, target: Object, key: str, value: Any, style: _Style) -> str:
    """Return `text` with a new last member in an object."""
    indent = _member_indent(text, target, style)
    if indent is None:
        member, before, after = json.dumps({key: value}, ensure_ascii=False)[1:-1], "", ""
    else:
        member = f"{json.dumps(key)}: {style.dumped(value, indent)}"
        before = f"{style.newline}{indent}"
        after = f"{style.newline}{_line_indent(text, target.start)}"
    if target.members:
        place = target.members[-1].end
        return f"{text[:place]},{before or ' '}{member}{text[place:]}"
    return f"{text[: target.start + 1]}{before}{member}{after}{text[target.end :]}"


def _member_indent(text: str, target: Object, style: _Style) -> str | None:
    """Return how far the members of an object are indented; None if they share a line."""
    if target.members:
        return _indent_of(text, target.members[-1].start)
    return None if style.step is None else _line_indent(text, target.start) + style.step


def _indent_of(text: str, position: int) -> str | None:
    """Return the indentation before `position` if only space precedes it on its line, else None."""
    line = text[text.rfind("\n", 0, position) + 1 : position]
    alone = not line.strip() and "\n" in text[:position]
    return line if alone else None


def _line_indent(text: str, position: int) -> str:
    """Return the leading space of the line of `position`."""
    line = text[text.rfind("\n", 0, position) + 1 : position]
    return line[: len(line) - len(line.lstrip())]


def _object_at(text: str, start: int) -> Object:
    """Return the object that begins at `start`; the text is known to be JSON."""
    members = tuple(_members(text, start))
    end = _after_space(text, members[-1].end if members else start + 1)
    return Object(start, end, members)


def _members(text: str, start: int) -> Iterator[Member]:
    position = _after_space(text, start + 1)
    while text[position] != "}":
        key, after_key = _DECODER.raw_decode(text, position)
        value = _after_space(text, _after_space(text, after_key) + 1)
        _, end = _DECODER.raw_decode(text, value)
        yield Member(key, position, value, end)
        position = _after_space(text, end)
        if text[position] == ",":
            position = _after_space(text, position + 1)


def _items(text: str, start: int) -> Iterator[tuple[int, int]]:
    """Yield where each item of the list that begins at `start` begins and ends."""
    position = _after_space(text, start + 1)
    while text[position] != "]":
        _, end = _DECODER.raw_decode(text, position)
        yield position, end
        position = _after_space(text, end)
        if text[position] == ",":
            position = _after_space(text, position + 1)


def _after_space(text: str, position: int) -> int:
    while text[position] in _SPACE:
        position += 1
    return position
