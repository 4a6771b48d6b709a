"""The configuration files of clients: a change is planned from a file's content, shown, then made atomically.

In a JSON file only the entries of the server change, in a TOML file only its tables: all else stays as it is
written. A file that is not understood is left as it is.
"""

import difflib
import json
import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from subagent_server.agents.yaml_reader import Unreadable
from subagent_server.cli.clients import (
    SERVER,
    Client,
    ClientPermissions,
    Entry,
    Syntax,
    completed,
    is_written_by_init,
)
from subagent_server.run import files
from subagent_server.run.durable import commit, discard, prepare, remove_leftovers
from subagent_server.run.errors import BadArgument, HostError, shorten
from subagent_server.run.files import held_open
from subagent_server.sandbox.file_watch import OwnWrites

MAX_BYTES = 16 << 20
_BOM = "\ufeff"
_PRIVATE, _SHARED = 0o600, 0o644
_SERVERS: dict[Syntax, str] = {"json": "mcpServers", "toml": "mcp_servers"}
_TABLE = re.compile(rf"\s*\[\s*mcp_servers\s*\.\s*[\"']?{SERVER}[\"']?\s*[.\]]")
"""The header of the server's table, or of a table in it."""


class NotEditable(Unreadable):
    """The file stays as it is. `reason` is a clause about "it"."""


@dataclass(frozen=True)
class Change:
    """The content of a file before and after; None if there is no file.

    With `replaces` another server has our name. A new file is readable by its owner alone if `private`, else
    by everybody, as a file of a project.
    """

    path: Path
    before: bytes | None
    after: bytes | None
    replaces: bool = False
    private: bool = True
    real: Path = field(init=False)
    """The path without links. A run could make one while a person looks at the change."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "real", self.path.resolve())

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to do."""
        return self.before != self.after

    def diff(self, name: str) -> Iterator[str]:
        """Yield the lines of the change as a unified diff, without line ends."""
        old, new = ((text or b"").decode("utf-8").splitlines() for text in (self.before, self.after))
        old_name, new_name = (os.devnull if not text else name for text in (self.before, self.after))
        return difflib.unified_diff(old, new, old_name, new_name, lineterm="")


def snippet(client: Client, entry: Entry) -> str:
    """Return a file with this server alone, for a person to paste."""
    return _written(client.syntax, "", {_SERVERS[client.syntax]: {SERVER: entry}})


# Each of the four returns the change of one file, and raises:
#   NotEditable: the file cannot be changed safely, so it stays as it is.
#   BadArgument: a path in the entry cannot be written down.
#   OSError: the file cannot be read.


def plan(client: Client, path: Path, entry: Entry, *, private: bool) -> Change:
    """Return the change that makes a client start the server by `entry`."""

    def add(data: dict[str, Any]) -> bool:
        servers = _servers(client.syntax, data)
        present = servers.get(SERVER)
        same = completed(present, entry)
        data[_SERVERS[client.syntax]] = {**servers, SERVER: same or entry}
        return present is not None and same is None

    return _change(client.syntax, path, add, private=private)


def plan_permissions(path: Path, permissions: ClientPermissions) -> Change:
    """Return the change that lets a client call the tools of the server without asking each time."""

    def allow(data: dict[str, Any]) -> bool:
        for keys, item in permissions.lists.items():
            listed = _around(data, keys).setdefault(keys[-1], [])
            if not isinstance(listed, list):
                raise NotEditable(f"its {'.'.join(keys)} is no list")
            if item not in listed:
                listed.append(item)
        for keys, value in permissions.texts.items():
            _around(data, keys).setdefault(keys[-1], value)
        return False

    return _change("json", path, allow)


def plan_removal(client: Client, path: Path) -> Change:
    """Return the change that takes the server out of a client's file; a file that holds nothing else goes.

    With `replaces` the server of our name is another one.
    """

    def take_out(data: dict[str, Any]) -> bool:
        servers = _servers(client.syntax, data)
        present = servers.pop(SERVER, None)
        if present is not None and not servers:
            del data[_SERVERS[client.syntax]]
        return present is not None and not is_written_by_init(present)

    return _change(client.syntax, path, take_out)


def plan_withdrawal(path: Path, permissions: ClientPermissions) -> Change:
    """Return the change that takes back what `plan_permissions` allows."""

    def withdraw(data: dict[str, Any]) -> bool:
        for keys, value in [*permissions.lists.items(), *permissions.texts.items()]:
            _taken_out(data, keys, value)
        return False

    return _change("json", path, withdraw)


def _change(
    syntax: Syntax, path: Path, edit: Callable[[dict[str, Any]], bool], *, private: bool = True
) -> Change:
    """Return the change that `edit` makes of the data; `edit` returns whether another server was there."""
    before, text = _read(path)
    data = _parsed(syntax, text)
    replaces = edit(data)
    if data == _parsed(syntax, text):
        return Change(path, before, before)
    rest = _written(syntax, text, data)
    if rest.strip() in ("", "{}") and not path.is_symlink():  # a link keeps its file
        return Change(path, before, None, replaces)
    return Change(path, before, _encoded(before, rest), replaces, private)


def write(change: Change, own: OwnWrites) -> None:
    """Write a change atomically, as one of our `own`. The file keeps its mode, and a link stays a link.

    Raises:
        StorageFailed: the disk refused; the file is as it was.
        HostError: the file was changed since the change was planned.
        OSError: its folder cannot be made.
    """
    path = change.path.resolve()
    if path != change.real:
        raise _changed(change.path)
    if change.after is None:
        _check_still(path, change.before)
        path.unlink()
        return
    with own.writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if change.before is not None:
            mode = stat.S_IMODE(path.stat().st_mode)
        else:
            mode = _PRIVATE if change.private else _SHARED
        file = files.Entry.at(path)
        remove_leftovers(file.directory)  # such as this command's own, if it was killed before
        temporary = prepare(file, change.after)
        try:
            with held_open(temporary.open()) as descriptor:  # never through a link that a run has put there
                os.fchmod(descriptor, mode)
            _check_still(path, change.before)
        except BaseException:
            discard(temporary)
            raise
        commit(temporary, file)


def _check_still(path: Path, before: bytes | None) -> None:
    """Refuse a file that is not any more as it was. Raises HostError."""
    try:
        is_still = _content(path) == before
    except NotEditable:
        is_still = False
    if not is_still:
        raise _changed(path)


def _changed(path: Path) -> HostError:
    return HostError(f"{path} was changed meanwhile and was left as it is: look at it, then try again.")


# -- bytes and text


def _content(path: Path) -> bytes | None:
    try:
        return files.read_plain(path, MAX_BYTES)[0]
    except FileNotFoundError:
        return None
    except files.NotPlain as error:
        raise NotEditable(str(error.strerror)) from error


def _read(path: Path) -> tuple[bytes | None, str]:
    """Return the content of a file, and its text without a byte order mark."""
    content = _content(path)
    try:
        return content, (content or b"").decode("utf-8").removeprefix(_BOM)
    except UnicodeDecodeError as error:
        raise NotEditable("it is not UTF-8 text") from error


def _encoded(before: bytes | None, text: str) -> bytes:
    """Return a text as it is written, with the byte order mark that the file had."""
    mark = _BOM if before is not None and before.startswith(_BOM.encode()) else ""
    try:
        return f"{mark}{text}".encode()
    except UnicodeEncodeError as error:
        around = shorten(text[max(0, error.start - 20) : error.end + 20])
        raise BadArgument(f"{around} is not UTF-8: name directories that are.") from error


# -- the two syntaxes


def _parsed(syntax: Syntax, text: str) -> dict[str, Any]:
    if syntax == "toml":
        try:
            return tomllib.loads(text)
        except (ValueError, RecursionError) as error:  # also of a number with thousands of digits
            raise NotEditable(f"it is not TOML ({error})") from error
    try:
        data = (
            json.loads(text, parse_constant=_no_constant, object_pairs_hook=_object) if text.strip() else {}
        )
    except (ValueError, RecursionError) as error:
        why, line = getattr(error, "msg", error), getattr(error, "lineno", None)
        raise NotEditable(f"it is not strict JSON ({why})", line) from error
    if not isinstance(data, dict):
        raise NotEditable("it holds no JSON object")
    return data


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    if len(found) < len(members):  # one of them would be lost
        raise ValueError("a key appears twice")
    return found


def _servers(syntax: Syntax, data: dict[str, Any]) -> dict[str, Any]:
    """Return the servers of a file. Raises NotEditable."""
    servers = data.get(_SERVERS[syntax], {})
    if not isinstance(servers, dict):
        raise NotEditable(f"its {_SERVERS[syntax]} is no {'object' if syntax == 'json' else 'table'}")
    return servers


def _written(syntax: Syntax, text: str, data: dict[str, Any]) -> str:
    """Return the text of a file with `data`, otherwise as its former `text`."""
    newline = "\r\n" if "\r\n" in text else "\n"
    if syntax == "toml":
        return _with_tables(text, data, newline)
    bare = text.strip()
    found = re.search(r'\n([ \t]+)"', bare)
    unit = found[1] if found else "  " if "\n" in bare or bare in ("", "{}") else None
    made = _edited(bare.replace("\r\n", "\n") or "{}", data, unit, "\n").replace("\n", newline)
    return text.replace(bare, made) if bare else f"{made}\n"


def _edited(text: str, new: Any, unit: str | None, line: str) -> str:
    """Return a JSON text changed to hold `new`; what it holds already stays as it is written.

    `unit` is a step of indentation, None if all is on one line. `line` begins the line of the last bracket.
    """
    old = json.loads(text)
    if old == new:
        return text
    was, will = _by_key(old), _by_key(new)
    kept = [key for key in was if key in will]
    added = [key for key in will if key not in was]
    if text[0] not in "{[" or type(old) is not type(new) or kept + added != list(will):
        return _laid_out(new, unit, line)
    members = _members(text)
    blanks, end = ("", "") if unit is None else (line + unit, line)
    if members:
        before, value, end = members[-1]
        members[-1] = before, value, ""
        blanks = before[: len(before) - len(before.lstrip())] or " "
    has_lines = "\n" in blanks
    inner = "\n" + blanks.rpartition("\n")[2] if has_lines else line
    parts = [
        before + _edited(value, will[key], unit, inner) + behind
        for (before, value, behind), key in zip(members, was, strict=True)
        if key in will
    ]
    for key in added:
        name = f"{json.dumps(key, ensure_ascii=False)}: " if isinstance(new, dict) else ""
        parts.append(blanks + name + _laid_out(will[key], unit if has_lines else None, inner))
    return text[0] + ",".join(parts) + (end if parts else "") + text[-1]


def _by_key(value: Any) -> dict[Any, Any]:
    """Return the members of an object, or the items of a list, each by its text and the equal ones before."""
    if isinstance(value, dict):
        return value
    items = value if isinstance(value, list) else []
    return {(json.dumps(item), items[:at].count(item)): item for at, item in enumerate(items)}


def _laid_out(value: Any, unit: str | None, line: str) -> str:
    return json.dumps(value, indent=unit, ensure_ascii=False).replace("\n", line)


def _members(text: str) -> list[tuple[str, str, str]]:
    """Return the text of each value in an object or list: what is before it, itself, the blanks behind."""
    found, decode, begin, at = [], json.JSONDecoder().raw_decode, 1, 1
    while (start := _after_blanks(text, at)) < len(text) - 1:
        _, end = decode(text, start)
        at = _after_blanks(text, end)
        if text[at] != ":":
            found.append((text[begin:start], text[start:end], text[end:at]))
            begin = at + 1
        at += 1
    return found


def _after_blanks(text: str, at: int) -> int:
    while text[at : at + 1].isspace():
        at += 1
    return at


def _with_tables(text: str, data: dict[str, Any], newline: str) -> str:
    """Return a TOML text with the server as `data` has it, instead of its tables, or at the end.

    A line inside of a text may look like a header too; so the result is parsed and compared.
    """
    entry = data.get(_SERVERS["toml"], {}).get(SERVER)
    lines = [] if entry is None else [f"[mcp_servers.{SERVER}]"]
    lines += [f"{key} = {_value(value)}" for key, value in (entry or {}).items()]
    table = "".join(f"{line}{newline}" for line in lines)
    spans = list(_tables(text))
    for first in range(len(spans)):
        changed = text
        for start, end in reversed(spans[first:]):
            before, here = changed[:start], table if start == spans[first][0] else ""
            if not here and (before.endswith(newline * 2) or not changed[end:].strip()):
                before = before.removesuffix(newline)  # that of the blank line before a table
            changed = before + here + changed[end:]
        if _says(changed, data):
            return changed
    appended = f"{text}{newline}{table}" if text else table
    if not _says(appended, data):
        raise NotEditable("its servers are written in a way that cannot be changed")
    return appended


def _tables(text: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of the server's tables, each to the end of its last setting.

    Comments behind that belong to the next table.
    """
    position = end = 0
    start: int | None = None
    for line in [*re.findall(r"[^\n]*\n|[^\n]+", text), "["]:
        bare = line.strip()
        if bare.startswith("["):
            if start is not None:
                yield start, end
            start = position if _TABLE.match(line) else None
        position += len(line)
        if bare and not bare.startswith("#"):
            end = position


def _says(text: str, wanted: dict[str, Any]) -> bool:
    none: dict[str, Any] = {_SERVERS["toml"]: {}}  # a person's own header of a table that is empty stays
    try:
        return none | tomllib.loads(text) == none | wanted
    except tomllib.TOMLDecodeError:
        return False


def _value(value: Any) -> str:
    """Return a text, number or truth, or a list of them: as in JSON, but for one character; or a table."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_value(key)} = {_value(each)}" for key, each in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _around(data: dict[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """Return the object that holds the last of `keys`, made if it is missing."""
    for key in keys[:-1]:
        data = data.setdefault(key, {})
        if not isinstance(data, dict):
            raise NotEditable(f"its {key} is no object")
    return data


def _taken_out(data: dict[str, Any], keys: Sequence[str], value: str) -> bool:
    """Take a value, or an item of a list, out of `data`, and what is empty then; return if it was there."""
    key, *rest = keys
    inner = data.get(key)
    if rest:
        found = isinstance(inner, dict) and _taken_out(inner, rest, value)
    elif isinstance(inner, list):
        found = value in inner
        if found:
            inner.remove(value)
    else:
        found, inner = inner == value, None
    if found and not inner:
        del data[key]
    return found
