"""Edit a JSON file of another program: set or remove the entry of a server, an item of a list, or a text.

Every other byte is kept.
"""

import json
from collections.abc import Sequence
from typing import Any, cast

from subagent_server.cli.clients.config_errors import NotEditable
from subagent_server.cli.clients.json_text import (
    SPACE,
    Member,
    Object,
    Style,
    after_space,
    indent_of,
    inserted,
    items,
    line_indent,
    object_at,
)

SERVERS = "mcpServers"


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
    place = _object_for(wanted, path)
    listed = place.setdefault(path[-1], [])
    if not isinstance(listed, list):
        raise NotEditable(f"its {'.'.join(path)} is no list")
    if item in listed:
        return text
    listed.append(item)
    if not text.strip():
        return json.dumps(wanted, indent=2, ensure_ascii=False) + "\n"
    return _checked(_with_item(text, path, item), wanted)


def with_text(text: str, path: Sequence[str], value: str) -> str:
    """Return `text` with `value` at `path`, unless something is there; objects around it may be missing.

    Raises:
        NotEditable: as `with_listed`.
    """
    wanted = _parsed(text) if text.strip() else {}
    place = _object_for(wanted, path)
    if path[-1] in place:
        return text
    place[path[-1]] = value
    if not text.strip():
        return json.dumps(wanted, indent=2, ensure_ascii=False) + "\n"
    return _checked(_with_member(text, path, value), wanted)


def _object_for(wanted: dict[str, Any], path: Sequence[str]) -> dict[str, Any]:
    """Return the object that holds the last key of `path`, made if it is missing. Raises NotEditable."""
    place: Any = wanted
    for key in path[:-1]:
        place = place.setdefault(key, {})
        if not isinstance(place, dict):
            raise NotEditable(f"its {key} is no object")
    return cast("dict[str, Any]", place)


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
    around = _objects_around(wanted, path)
    listed = around[-1].get(path[-1]) if len(around) == len(path) else None
    if not isinstance(listed, list) or item not in listed:
        return text
    listed.remove(item)
    if listed:
        return _checked(_without_item(text, path, item), wanted)
    return _without_last(text, path, wanted, around)


def without_text(text: str, path: Sequence[str], value: str) -> str:
    """Return `text` without `value` at `path`, and without what holds nothing else.

    Raises:
        NotEditable: as `with_listed`.
    """
    wanted = _parsed(text) if text.strip() else {}
    around = _objects_around(wanted, path)
    if len(around) < len(path) or around[-1].get(path[-1]) != value:
        return text
    return _without_last(text, path, wanted, around)


def _objects_around(wanted: dict[str, Any], path: Sequence[str]) -> list[dict[str, Any]]:
    """Return the objects on the way to the last key of `path`, as far as they are there."""
    around = [wanted]
    for key in path[:-1]:
        inner = around[-1].get(key)
        if not isinstance(inner, dict):
            break
        around.append(inner)
    return around


def _without_last(
    text: str, path: Sequence[str], wanted: dict[str, Any], around: list[dict[str, Any]]
) -> str:
    """Return `text` without the last key of `path`, and without the objects that held nothing else."""
    depth = len(path) - 1
    del around[depth][path[depth]]
    while depth and not around[depth]:
        depth -= 1
        del around[depth][path[depth]]
    return _without(text, path[: depth + 1], wanted)


def holds_nothing(text: str) -> bool:
    """Whether a text is an object without members, or blank."""
    return not text.strip() or _parsed(text) == {}


def _without(text: str, path: Sequence[str], wanted: dict[str, Any]) -> str:
    """Return `text` without the member at `path`, and the objects around it that hold nothing else."""
    objects = [object_at(text, after_space(text, 0))]
    for key in path[:-1]:
        member = objects[-1].last(key)
        if member is None:
            return text
        objects.append(object_at(text, member.value))
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
    target = object_at(text, after_space(text, 0))
    for key in path[:-1]:
        target = object_at(text, _value_of(target, key))
    start = _value_of(target, path[-1])
    spans = list(items(text, start))
    index = next(i for i, (begin, end) in enumerate(spans) if json.loads(text[begin:end]) == item)
    return _cut_out(text, start, after_space(text, spans[-1][1]), spans, index)


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
    style = Style.of(text)
    whole = object_at(text, after_space(text, 0))
    servers = whole.last(SERVERS)
    if servers is None:
        return inserted(text, whole, SERVERS, {server: entry}, style)
    present = object_at(text, servers.value)
    old = present.last(server)
    if old is None:
        return inserted(text, present, server, entry, style)
    indent = indent_of(text, old.start)
    value = json.dumps(entry, ensure_ascii=False) if indent is None else style.dumped(entry, indent)
    return text[: old.value] + value + text[old.end :]


def _with_item(text: str, path: Sequence[str], item: str) -> str:
    target = object_at(text, after_space(text, 0))
    for key in path[:-1]:
        member = target.last(key)
        if member is None:
            return _with_member(text, path, [item])
        target = object_at(text, member.value)
    member = target.last(path[-1])
    if member is None:
        return _with_member(text, path, [item])
    return _appended(text, member, item, Style.of(text))


def _with_member(text: str, path: Sequence[str], value: Any) -> str:
    """Return `text` with a value at `path`, where nothing is."""
    target = object_at(text, after_space(text, 0))
    for depth, key in enumerate(path):
        member = target.last(key)
        if member is None:
            for inner in reversed(path[depth + 1 :]):
                value = {inner: value}
            return inserted(text, target, key, value, Style.of(text))
        target = object_at(text, member.value)
    return text


def _appended(text: str, member: Member, item: str, style: Style) -> str:
    """Return `text` with a new last item in the list that is the value of a member, laid out as the last."""
    word = json.dumps(item, ensure_ascii=False)
    present = text[member.value : member.end - 1].rstrip(SPACE)
    if present == "[":
        return f"{text[: member.value]}[{word}]{text[member.end :]}"
    place = member.value + len(present)
    between = f",{style.newline}{line_indent(text, place)}" if "\n" in present else ", "
    return f"{text[:place]}{between}{word}{text[place:]}"
