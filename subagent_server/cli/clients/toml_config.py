"""Servers in a TOML file of another program: one table is set, every other byte stays as it is.

A new table goes to the end of the text. A table that is there is replaced in place by tomlkit, which keeps
comments, order and line ends. The result is read again: unless it says exactly what was wanted, the file is
left alone.
"""

import json
import tomllib
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
    try:
        holds = tomllib.loads(changed) == wanted
    except tomllib.TOMLDecodeError:
        holds = False
    if not holds:
        raise NotEditable("its servers are written in a way that cannot be added to")
    return changed


def snippet(server: str, entry: dict[str, Any]) -> str:
    """Return the table of this server."""
    lines = [f"[{SERVERS}.{server}]", *(f"{key} = {_value(value)}" for key, value in entry.items())]
    return "\n".join(lines) + "\n"


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
    end = "" if text.endswith("\n") else newline
    return f"{text}{end}{newline}{table}"


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
