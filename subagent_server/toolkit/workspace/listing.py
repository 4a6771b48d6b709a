"""The entries of a directory, two levels deep."""

import os
from itertools import islice

from subagent_server.host.inside import PathInside, printable

_MOST_ENTRIES = 1000
_MOST_READ = 20_000
_LEVELS = 2
_NOT_ENTERED = frozenset({"node_modules", "__pycache__"})


def list_directory(place: PathInside) -> str:
    """Return the entries of `place` and of its directories, hidden ones left out, links not followed."""
    lines: list[str] = []
    descriptor = place.open_directory()
    try:
        _list(descriptor, "/".join(place.parts), _LEVELS, lines)
    finally:
        os.close(descriptor)
    head = f"{place.shown}/ holds, two levels deep and without hidden entries:"
    if not lines:
        return f"{place.shown}/ is empty, but for hidden entries perhaps."
    if len(lines) > _MOST_ENTRIES:
        return "\n".join([head, *lines[:_MOST_ENTRIES], "[... and more: view a directory below]"])
    return "\n".join([head, *lines])


def _list(directory: int, prefix: str, levels: int, lines: list[str]) -> None:
    with os.scandir(directory) as entries:
        visible = (entry for entry in entries if not entry.name.startswith("."))
        found = sorted(islice(visible, _MOST_READ), key=lambda entry: entry.name)
    for entry in found:
        if len(lines) > _MOST_ENTRIES:
            return
        path = f"{prefix}/{entry.name}" if prefix else entry.name
        is_directory = entry.is_dir(follow_symlinks=False)
        lines.append(printable(path) + ("/" if is_directory else _target(directory, entry)))
        if is_directory and levels > 1 and entry.name not in _NOT_ENTERED:
            _enter(directory, entry.name, path, levels - 1, lines)


def _enter(directory: int, name: str, path: str, levels: int, lines: list[str]) -> None:
    try:
        inner = PathInside(directory, name, ()).open_directory()
    except OSError as error:
        lines[-1] += f" [not readable: {error.strerror}]"
        return
    try:
        _list(inner, path, levels, lines)
    finally:
        os.close(inner)


def _target(directory: int, entry: os.DirEntry[str]) -> str:
    if not entry.is_symlink():
        return ""
    try:
        return f" -> {printable(os.readlink(entry.name, dir_fd=directory))}"
    except OSError:  # it was removed meanwhile
        return ""
