"""A change of a client's configuration file: planned from its content, shown, then made atomically."""

import difflib
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from subagent_server.cli.clients import json_config, toml_config
from subagent_server.cli.clients.client_configs import SERVER, Client, Entry, Permissions, is_current
from subagent_server.cli.clients.config_errors import NotEditable
from subagent_server.domain.errors import BadArgument, HostError, shorten
from subagent_server.host import directory
from subagent_server.host.atomic import commit, discard, prepare

__all__ = ["Change", "NotEditable", "plan", "plan_permissions", "snippet", "write"]

MAX_BYTES = 16 << 20
_BOM = "\ufeff"
_PRIVATE, _SHARED = 0o600, 0o644


class _Syntax(NamedTuple):
    read_entry: Callable[[str, str], Any]
    with_entry: Callable[[str, str, Entry], str]
    snippet: Callable[[str, Entry], str]


_SYNTAXES = {
    "json": _Syntax(json_config.read_entry, json_config.with_entry, json_config.snippet),
    "toml": _Syntax(toml_config.read_entry, toml_config.with_entry, toml_config.snippet),
}


@dataclass(frozen=True)
class Change:
    """The content of a file before and after; `before` is None if there is no file.

    `replaces` says that another server has our name. A new file is readable by its owner alone if `private`,
    else by everybody, as a file of a project.
    """

    path: Path
    before: bytes | None
    after: bytes
    replaces: bool
    private: bool

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to do."""
        return self.before != self.after

    def diff(self, name: str) -> Iterator[str]:
        """Yield the lines of the change as a unified diff, without line ends."""
        old, new = ((text or b"").decode("utf-8").splitlines() for text in (self.before, self.after))
        return difflib.unified_diff(old, new, name if old else os.devnull, name, lineterm="")


def snippet(client: Client, entry: Entry) -> str:
    """Return a file with this server alone, for a person to paste."""
    return _SYNTAXES[client.syntax].snippet(SERVER, entry)


def plan(client: Client, path: Path, entry: Entry, *, private: bool) -> Change:
    """Return the change that makes a client start the server as `entry` says.

    Raises:
        NotEditable: the file cannot be changed safely, so it stays as it is.
        BadArgument: a path in the entry cannot be written down.
        OSError: the file cannot be read.
    """
    before = _content(path)
    text = _text(before or b"")
    syntax = _SYNTAXES[client.syntax]
    bare = text.removeprefix(_BOM)
    present = syntax.read_entry(bare, SERVER)
    if is_current(present, entry):
        return Change(path, before, before or b"", replaces=False, private=private)
    changed = text[: len(text) - len(bare)] + syntax.with_entry(bare, SERVER, entry)
    replaces = present is not None
    return Change(path, before, _bytes(changed), replaces=replaces, private=private)


def plan_permissions(path: Path, permissions: Permissions) -> Change:
    """Return the change that lets a client call the tools of the server without asking each time.

    Raises:
        NotEditable: the file cannot be changed safely, so it stays as it is.
        OSError: the file cannot be read.
    """
    before = _content(path)
    text = _text(before or b"")
    bare = text.removeprefix(_BOM)
    changed = bare
    for place, item in permissions.lists.items():
        changed = json_config.with_listed(changed, place, item)
    after = _bytes(text[: len(text) - len(bare)] + changed)
    return Change(path, before, after, replaces=False, private=True)


def write(change: Change) -> None:
    """Write a change atomically. The file keeps its mode, and a link to it stays a link.

    Raises:
        StorageFailed: the disk refused; the file is as it was.
        HostError: the file was changed since the change was planned.
        OSError: its folder cannot be made.
    """
    path = change.path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    if change.before is not None:
        mode = stat.S_IMODE(path.stat().st_mode)
    else:
        mode = _PRIVATE if change.private else _SHARED
    temporary = prepare(directory.Entry.at(path), change.after)
    try:
        temporary.path.chmod(mode)
        if not _is_still(path, change.before):
            raise HostError(
                f"{path} was changed meanwhile and was left as it is: look at it, then try again."
            )
    except BaseException:
        discard(temporary)
        raise
    commit(temporary, directory.Entry.at(path))


def _is_still(path: Path, before: bytes | None) -> bool:
    try:
        return _content(path) == before
    except NotEditable:
        return False


def _content(path: Path) -> bytes | None:
    """Return the content of a file, or None if there is none. A project may have come with anything there.

    Raises:
        NotEditable: it is not a plain file, or a huge one.
        OSError: it cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise NotEditable("it is not a plain file")
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise NotEditable(f"it is larger than {MAX_BYTES >> 20} MiB")
    return content


def _text(content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotEditable("it is not UTF-8 text") from error


def _bytes(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise BadArgument(
            f"{shorten(text[error.start - 20 : error.end + 20])} is not UTF-8: name directories that are."
        ) from error
