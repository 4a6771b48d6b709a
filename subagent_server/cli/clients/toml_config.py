"""Servers in a TOML file of another program: one table is set or removed, every other byte stays as it is.

A new table goes to the end of the text. A table that is there is replaced in place by tomlkit, which keeps
comments, order and line ends. The result is read again: unless it says exactly what was wanted, the file is
left alone.
"""

import json
import re
import tomllib
from collections.abc import Iterator
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import Comment, Item, Table, Whitespace

from subagent_server.cli.clients.config_errors import NotEditable

SERVERS = "mcp_servers"


def read_entry(text: str, server: str) -> Any:
    """Return the entry of a server, None where there is none.

    Raises:
        NotEditable: the text is not TOML, or has something else where servers should be.
    """
    return _servers(_parsed(text)).get(server)


def with_entry(text: str, server: str, entry: dict[str, Any]) -> str:
    """Return `text` with the entry of a server set.

    Raises:
        NotEditable: as `read_entry`, or the entry cannot be set without touching the rest.
    """
    wanted = _parsed(text)
    is_new = server not in _servers(wanted)
    wanted.setdefault(SERVERS, {})[server] = entry
    newline = "\r\n" if "\r\n" in text else "\n"
    table = snippet(server, entry).replace("\n", newline)
    changed = _appended(text, table, newline) if is_new else _replaced(text, server, table)
    if not _says(changed, wanted):
        raise NotEditable("its servers are written in a way that cannot be added to")
    return changed


def without_entry(text: str, server: str) -> str:
    """Return `text` without the tables of a server, and the line end before the first.

    Raises:
        NotEditable: as `read_entry`, or they cannot be removed without touching the rest.
    """
    wanted = _parsed(text)
    servers = _servers(wanted)
    if server not in servers:
        return text
    del servers[server]
    if not servers:
        del wanted[SERVERS]
    spans = list(_tables(text, server))
    for first in range(len(spans)):  # a line inside of a text may look like a header too
        changed = text
        for start, end in reversed(spans[first:]):
            changed = changed[:start] + changed[end:]
        if _says(changed, wanted):
            return changed
    raise NotEditable("its servers are written in a way that cannot be taken out")


def holds_nothing(text: str) -> bool:
    """Whether a text has neither keys nor comments."""
    return not text.strip()


def snippet(server: str, entry: dict[str, Any]) -> str:
    """Return the table of this server."""
    lines = [f"[{SERVERS}.{server}]", *(f"{key} = {_value(value)}" for key, value in entry.items())]
    return "\n".join(lines) + "\n"


def _tables(text: str, server: str) -> Iterator[tuple[int, int]]:
    """Yield where the tables of a server stand, each to the end of its last setting.

    The line end before a table belongs to it if it makes a blank line, or if the table is the last.
    """
    header = re.compile(rf"\s*\[\s*{SERVERS}\s*\.\s*[\"']?{re.escape(server)}[\"']?\s*[.\]]")
    position = done = end = 0
    start: int | None = None
    for line in [*re.findall(r"[^\n]*\n|[^\n]+", text), "["]:
        bare = line.strip()
        if bare.startswith("["):
            if start is not None:
                yield max(done, _before(text, start, end)), end
                done = end
            start = position if header.match(line) else None
        position += len(line)
        if bare and not bare.startswith("#"):
            end = position


def _before(text: str, start: int, end: int) -> int:
    """Return where the line end before a table begins if it belongs to the table, else `start`."""
    line_end = text[:start].removesuffix("\n").removesuffix("\r")
    is_last = not text[end:].strip()
    return len(line_end) if is_last or line_end.endswith("\n") else start


def _says(text: str, wanted: dict[str, Any]) -> bool:
    try:
        return tomllib.loads(text) == wanted
    except tomllib.TOMLDecodeError:
        return False


def _value(value: Any) -> str:
    """Return a text, number or truth, or a list of them: as in JSON, but for one character; or a table."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_value(key)} = {_value(each)}" for key, each in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _parsed(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise NotEditable(f"it is not TOML ({error})") from error


def _servers(data: dict[str, Any]) -> dict[str, Any]:
    servers = data.get(SERVERS, {})
    if not isinstance(servers, dict):
        raise NotEditable(f"its {SERVERS} is no table")
    return servers


def _appended(text: str, table: str, newline: str) -> str:
    if not text:
        return table
    return f"{text}{newline}{table}"  # one line end more than there was, so that it can be taken out again


def _replaced(text: str, server: str, table: str) -> str:
    """Return `text` with the settings of `table` in that server's, or `text` if they cannot be put there.

    That is so if the server has no header, or tables in several places with others between them.
    """
    try:
        document: Any = tomlkit.parse(text)
        settings: Any = tomlkit.parse(table)
        if tomlkit.dumps(document) != text:
            return text
        former, new = document[SERVERS][server], settings[SERVERS][server]
        if isinstance(former, Table) and not former.is_super_table():
            former.value.body[:] = [*new.value.body, *((None, item) for item in _tail(former))]
        return tomlkit.dumps(document)
    except (TOMLKitError, ValueError) as error:
        raise NotEditable(f"its servers are written in a way that cannot be changed ({error})") from error


def _tail(table: Any) -> list[Item]:
    """Return the blanks and comments behind the last setting of a table: they belong to the next table."""
    if not isinstance(table, Table):
        return []
    tail: list[Item] = []
    for _, item in reversed(table.value.body):
        if not isinstance(item, Comment | Whitespace):
            return [*_tail(item), *tail]
        tail.insert(0, item)
    return tail
