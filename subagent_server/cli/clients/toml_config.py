"""Servers in a TOML file of somebody else's: one table is set, every other byte stays as it is.

The standard library reads TOML and does not write it, so the table is put in as text, and the whole is read
again: unless it then says exactly what was wanted, the file is left alone.
"""

import json
import re
import tomllib
from collections.abc import Iterator
from typing import Any, NamedTuple

from subagent_server.cli.clients.config_errors import NotEditable

SERVERS = "mcp_servers"


class Section(NamedTuple):
    """A table with a header of its own: its name, and which lines it has, the first being the header."""

    name: tuple[str, ...]
    start: int
    end: int


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
    _servers(wanted)  # has to be a table where it is there
    wanted.setdefault(SERVERS, {})[server] = entry
    newline = "\r\n" if "\r\n" in text else "\n"
    table = snippet(server, entry).replace("\n", newline)
    changed = _replaced(text, server, table, newline)
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
    """Return a text, number or truth, or a list of them: as in JSON, but for one character."""
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


def _replaced(text: str, server: str, table: str, newline: str) -> str:
    """Return `text` with `table` where that server's tables were, else at the end."""
    lines = re.findall(r"[^\n]*\n|[^\n]+", text)
    own = [section for section in _sections(lines) if section.name[:2] == (SERVERS, server)]
    if not own:
        return _appended(text, table, newline)
    kept: list[str] = []
    position = 0
    for number, section in enumerate(own):
        kept += lines[position : section.start]
        if number == 0:
            kept.append(table)
        position = _last_setting(lines, section)
    return "".join([*kept, *lines[position:]])


def _appended(text: str, table: str, newline: str) -> str:
    if not text:
        return table
    end = "" if text.endswith("\n") else newline
    return f"{text}{end}{newline}{table}"


def _last_setting(lines: list[str], section: Section) -> int:
    """Return the line after the last setting: what blanks and remarks follow belongs to the next table."""
    end = section.end
    while end > section.start + 1 and (not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#")):
        end -= 1
    return end


def _sections(lines: list[str]) -> Iterator[Section]:
    """Yield the tables that have a header of their own, in their order."""
    headers = [(number, name) for number in range(len(lines)) if (name := _header(lines, number))]
    ends = [*(number for number, _ in headers), len(lines)][1:]
    for (start, name), end in zip(headers, ends, strict=True):
        yield Section(name, start, end)


def _header(lines: list[str], number: int) -> tuple[str, ...]:
    """Return the name of the table whose header is this line; nothing where it is none.

    Inside a text or a list of several lines, what stands before the line is not whole, so it does not parse.
    """
    if not lines[number].lstrip().startswith("["):
        return ()
    try:
        tomllib.loads("".join(lines[:number]))
        opened = tomllib.loads(lines[number])
    except tomllib.TOMLDecodeError:
        return ()
    return _path(opened)


def _path(opened: Any) -> tuple[str, ...]:
    """Return the way down to the innermost table of what a single header has opened."""
    if isinstance(opened, list):
        return _path(opened[0])
    if not isinstance(opened, dict) or not opened:
        return ()
    ((name, inner),) = opened.items()
    return (name, *_path(inner))
